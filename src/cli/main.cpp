// firkin: predicts and measures gradient bucket sizes, and compares its choice with PyTorch's default.
#include <fmt/ranges.h>

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <system_error>

#include "firkin/base/file.h"
#include "flags.h"

namespace firkin::cli {

// One line per command. Its file is in this folder; some files have several commands.
Run declare_bench_allreduce(CLI::App& app);
Run declare_bench_chunks(CLI::App& app);
Run declare_bench_collectives(CLI::App& app);
Run declare_bench_layers(CLI::App& app);
Run declare_bench_pairs(CLI::App& app);
Run declare_bench_step(CLI::App& app);
Run declare_buckets(CLI::App& app);
Run declare_trace(CLI::App& app);
Run declare_tune(CLI::App& app);
Run declare_predict(CLI::App& app);
Run declare_import(CLI::App& app);
Run declare_report(CLI::App& app);

namespace {

constexpr std::array kExperiments = {
    Command{"step", "time training steps by strategy and cap", declare_bench_step},
    Command{"allreduce", "time an all-reduce by size, alone and queued", declare_bench_allreduce},
    Command{"chunks", "time the same data in chunks (DDP paper, Figure 2)", declare_bench_chunks},
    Command{"collectives", "time all-reduce and what sharded sends, by size", declare_bench_collectives},
    Command{"pairs", "time links two ranks at a time: which one is slow", declare_bench_pairs},
    Command{"layers", "time every layer, and when each gradient is ready", declare_bench_layers},
};

// The commands, in the order of --help. The first three measure.
constexpr std::array kCommands = {
    Command{"tune", "find the fastest bucket size: measure, predict, verify", declare_tune},
    Command{"bench", "run one experiment: step, allreduce, collectives, ...",
            [](CLI::App& app) { return add_commands(app, kExperiments); }},
    Command{"trace", "record steps as Chrome traces, with overlap figures", declare_trace},
    Command{"buckets", "list named models; show one's buckets, or a file's", declare_buckets},
    Command{"predict", "predict the best cap: --model on --cluster, or files", declare_predict},
    Command{"import", "convert others' measurements to Firkin's CSV files", declare_import},
    Command{"report", "turn results.json into a page", declare_report},
};

bool measures(const Command& command) {
  return &command - kCommands.data() < 3;
}

constexpr int kUsageError = 2;
constexpr int kFailure = 1;
constexpr int kReaderHasGone = 128 + SIGPIPE;  // as a shell reports a program that SIGPIPE has ended

std::vector<std::string> stored_command_line;

// Prints a message as one line that is harmless on a terminal, whatever it holds.
int report_error(std::string message, int exit_code) {
  std::ranges::replace_if(
      message, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  std::fputs(fmt::format("firkin: {}\n", message).c_str(), stderr);  // unlike fmt::print it does not throw
  return exit_code;
}

// Returns the command of this name, or null for a flag. Names an unknown one, where CLI11 would say that one is missing.
const Command* find_command(const std::string& word, std::span<const Command> commands, const char* what) {
  if (word.starts_with('-')) return nullptr;
  const auto found = std::ranges::find(commands, word, &Command::name);
  if (found != commands.end()) return &*found;
  std::vector<std::string_view> names;
  for (const Command& command : commands) {
    if (can_measure() || what[0] == 'e' || !measures(command)) names.emplace_back(command.name);
  }
  throw InputError(fmt::format("unknown {} '{}'; expected one of {}", what, word, fmt::join(names, ", ")));
}

void check_subcommand(const std::vector<std::string>& words) {
  const Command* command = words.empty() ? nullptr : find_command(words[0], kCommands, "subcommand");
  if (!command) return;
  if (measures(*command) && !can_measure()) {
    throw InputError(
        fmt::format("'{}' measures, for which this program starts firkin-measure of the C++ build: there is none beside it; {}", words[0],
                    words[0] == "tune" ? "with the Python package: torchrun --nproc-per-node 2 -m firkin.tune my_script.py:build"
                                       : "expected the program of the release's tarball, or of `make program` in the source"));
  }
  if (words[0] == "bench" && words.size() > 1) find_command(words[1], kExperiments, "experiment");
}

// Names the file of --config in a message about a flag set there ("--cap 4: ..." or what CLI11 cannot parse).
std::string with_config_file(const CLI::App& app, std::string message) {
  constexpr std::string_view kNotParsed = "INI was not able to parse ";
  if (app.get_config_ptr()->count() == 0) return message;
  const auto file = app.get_config_ptr()->as<std::string>();
  if (message.starts_with(kNotParsed)) {
    message = message.substr(kNotParsed.size());
    return fmt::format("--config {}: '{}' is no flag; expected sections and flags: [bench.step], batch = [2, 4]", file,
                       message.substr(0, message.find(".++")));
  }
  const std::string flag = message.substr(0, message.find_first_of(" :"));
  const auto names_it = [&flag](const std::string& word) { return word.substr(0, word.find('=')) == flag; };
  const bool in_file = flag.starts_with("--") && std::ranges::none_of(command_line(), names_it);
  return in_file ? fmt::format("--config {}: {}", file, message) : message;
}

// CLI11's message about a value that it cannot convert, "Could not convert: --world = two", as "--world: two: expected a
// number"; other messages as they are. All flags that are converted take numbers.
std::string about_conversion(std::string message) {
  constexpr std::string_view kBegin = "Could not convert: ", kBetween = " = ";
  const size_t between = message.find(kBetween);
  if (!message.starts_with(kBegin) || between == std::string::npos) return message;
  return fmt::format("{}: {}: expected a number", message.substr(kBegin.size(), between - kBegin.size()),
                     message.substr(between + kBetween.size()));
}

// How many characters must be inserted, left out or replaced to make one word of the other.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // to b's beginnings, from a beginning of a
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = before + (a[i] == b[j] ? 0 : 1);
      before = std::exchange(row[j + 1], std::min({replaced, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row[b.size()];
}

// The subcommand that was parsed last: `step` of firkin bench step.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.back());
}

// "firkin bench step"
std::string full_name(const CLI::App& app) {
  return app.get_parent() ? fmt::format("{} {}", full_name(*app.get_parent()), app.get_name()) : app.get_name();
}

// What flags are called elsewhere: in other commands, in launchers, in PyTorch and Transformers.
constexpr std::array<std::pair<std::string_view, const char*>, 8> kOtherNames = {{{"--ranks", "--world"},
                                                                                  {"--world-size", "--world"},
                                                                                  {"--nproc-per-node", "--ranks"},
                                                                                  {"--np", "--ranks"},
                                                                                  {"--batch-size", "--batch"},
                                                                                  {"--sequence-length", "--sequence"},
                                                                                  {"--bucket-cap-mb", "--cap"},
                                                                                  {"--output", "--out"}}};

// The flag of the command that is meant by an unknown one: by its other name, or the one that it resembles; else empty.
std::string flag_meant(const CLI::App& command, const std::string& unknown) {
  if (command.get_option_no_throw(unknown)) return unknown;  // it stands before the command's name
  for (const auto& [other, name] : kOtherNames) {
    if (other == unknown && command.get_option_no_throw(name)) return name;
  }
  constexpr size_t kMostEdits = 2;
  std::pair<size_t, std::string> most_alike = {kMostEdits + 1, ""};
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      most_alike = std::min(most_alike, {edits_between(unknown, "--" + name), "--" + name});
    }
  }
  return most_alike.second;
}

// What to say of words that no flag takes: of the first flag among them.
std::string about_extra_words(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  const CLI::App& command = innermost(app);
  const auto is_flag = [](const std::string& word) { return word.starts_with("--"); };
  const auto found = std::ranges::find_if(words, is_flag);
  if (found == words.end()) {
    const bool is_number = words.front().find_first_not_of("0123456789.") == std::string::npos;
    return fmt::format("'{}': {} takes no such word{}", words.front(), full_name(command),
                       is_number ? "; expected commas in a list, as in 2,4" : "");
  }
  const std::string flag = found->substr(0, found->find('='));
  const std::string meant = flag_meant(command, flag);
  if (meant == flag) return fmt::format("{}: expected behind '{}'", flag, full_name(command));
  return fmt::format("{}: no flag of {}{}", flag, full_name(command), meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
}

std::string about_missing_subcommand(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* one : innermost(app).get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); }))
    names.push_back(one->get_name());
  return fmt::format("{}: expected one of {} behind it", innermost(app).get_name(), fmt::join(names, ", "));
}

// Whether whoever read our standard output has gone, as `head` does.
bool reader_has_gone() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

int run(int argc, char** argv) {
  check_subcommand(command_line());
  CLI::App app(fmt::format("Chooses the gradient bucket size for data-parallel training.\nStart with: firkin {}",
                           can_measure() ? "tune --ranks 2" : "predict --help (this build is without LibTorch)"));
  app.name("firkin");
  app.set_version_flag("--version", FIRKIN_VERSION);
  const auto show_licenses = [] {  // printed like the version, after which CLI11 ends the line
    const std::string_view notices = third_party_notices();
    throw CLI::CallForVersion(std::string(notices.substr(0, notices.find_last_not_of('\n') + 1)), 0);
  };
  app.add_flag_callback("--licenses", show_licenses, "print the licences of code in this program, and exit");
  shorten_help(app);
  app.set_config("--config", "", "file of flags: [bench.step], batch = [2, 4]");
  app.allow_config_extras(CLI::config_extras_mode::error);
  const Run chosen = add_commands(app, kCommands);
  for (const Command& command : kCommands) {
    if (measures(command) && !can_measure()) app.get_subcommand(command.name)->group("");  // known to --config only
  }
  if (command_line().empty()) {
    fmt::print("{}", app.help());
    return 0;
  }
  try {
    if (command_line() == std::vector<std::string>{"bench"}) {
      app.parse("bench --help");  // which lists the experiments
    } else {
      app.parse(argc, argv);
    }
    return chosen();
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ExtrasError&) {
    return report_error(fmt::format("{} (see {} --help-all)", about_extra_words(app), full_name(innermost(app))), kUsageError);
  } catch (const CLI::RequiredError&) {  // all flags are optional
    return report_error(about_missing_subcommand(app), kUsageError);
  } catch (const CLI::ParseError& error) {
    return report_error(fmt::format("{} (see {} --help)", with_config_file(app, about_conversion(error.what())), full_name(innermost(app))),
                        kUsageError);
  } catch (const InputError& error) {
    return report_error(with_config_file(app, error.what()), kUsageError);
  }
}

}  // namespace

const std::vector<std::string>& command_line() {
  return stored_command_line;
}

}  // namespace firkin::cli

namespace {

int run_and_report(int argc, char** argv) {
  using namespace firkin;
  occupy_standard_descriptors();
  cli::stored_command_line.assign(argv + 1, argv + argc);
  std::signal(SIGXFSZ, SIG_IGN);  // so that write() fails, with a message, if a file may not grow
  try {
    return cli::run(argc, argv);
  } catch (const InputError& error) {
    return cli::report_error(error.what(), cli::kUsageError);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::broken_pipe && cli::reader_has_gone()) return cli::kReaderHasGone;
    return cli::report_error(error.what(), cli::kFailure);
  } catch (const std::exception& error) {
    const std::string message = error.what();
    return cli::report_error(message.substr(0, message.find('\n')), cli::kFailure);  // LibTorch's go on with a stack trace
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int code = run_and_report(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (firkin::cli::reader_has_gone()) return firkin::cli::kReaderHasGone;
  return firkin::cli::report_error("standard output cannot be written", code != 0 ? code : firkin::cli::kFailure);
}
