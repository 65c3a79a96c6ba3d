// firkin: finds, predicts and proves the best gradient bucket size.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "report/page.h"

namespace firkin::cli {
namespace {

constexpr int kUsageError = 2;
constexpr int kFailure = 1;

std::vector<std::string>& stored_command_line() {
  static std::vector<std::string> words;
  return words;
}

// Messages are one line, and harmless on a terminal, whatever a library or a file put into them.
int report_error(const std::string& message, int exit_code) {
  std::string line = message.substr(0, message.find('\n'));
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  fmt::print(stderr, "firkin: {}\n", line);
  return exit_code;
}

// CLI11 would say that a subcommand is missing.
void check_subcommand(const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with('-')) return;
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    if (words[0] == command.name) return;
    names.emplace_back(command.name);
  }
  throw InputError(fmt::format("unknown subcommand '{}'; expected one of {}", words[0], fmt::join(names, ", ")));
}

int run(int argc, char** argv) {
  const bool completes = !command_line().empty() && command_line()[0] == "__complete";
  if (!completes) check_subcommand(command_line());
  const bool measures = std::ranges::any_of(commands(), [](const Command& command) { return std::string_view(command.name) == "tune"; });
  CLI::App app(fmt::format("Data-parallel training for LibTorch, and the best gradient bucket size.\nStart with: firkin {}",
                           measures ? "tune --ranks 2" : "predict --help (this build is without LibTorch)"));
  app.name("firkin");
  app.set_version_flag("--version", FIRKIN_VERSION);
  const auto show_licenses = [] {  // printed as the version is, which ends the line
    const std::string_view notices = third_party_notices();
    throw CLI::CallForVersion(std::string(notices.substr(0, notices.find_last_not_of('\n') + 1)), 0);
  };
  app.add_flag_callback("--licenses", show_licenses, "print the licences of the code of others in this program, and exit");
  app.get_formatter()->column_width(26);
  app.set_config("--config", "", "file of flags: [bench.step], batch = [2, 4]");
  app.allow_config_extras(CLI::config_extras_mode::error);
  const Run chosen = add_commands(app, commands());
  if (completes) {
    fmt::print("{}", completions_of(app, {command_line().begin() + 1, command_line().end()}));
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return report_error(fmt::format("{} (see firkin --help, firkin SUBCOMMAND --help)", error.what()), kUsageError);
  }
  return chosen();
}

}  // namespace

Run add_commands(CLI::App& app, std::span<const Command> commands) {
  app.require_subcommand(1);
  auto chosen = std::make_shared<Run>();
  for (const Command& command : commands) {
    CLI::App* subcommand = app.add_subcommand(command.name, command.summary);
    subcommand->fallthrough();  // so that --config may stand anywhere
    subcommand->final_callback([chosen, declared = command.declare(*subcommand)] { *chosen = declared; });
  }
  return [chosen] { return (*chosen)(); };
}

const std::vector<std::string>& command_line() {
  return stored_command_line();
}

void add_output_flags(CLI::App& app, CommonFlags& flags, const std::string& command) {
  flags.app = &app;
  flags.out = "firkin-out/" + command;
  app.add_flag("--json", flags.json, "print the result as JSON on standard output");
  app.add_option("--out", flags.out, "folder for the files that are written")->capture_default_str();
}

void add_common_flags(CLI::App& app, CommonFlags& flags, const std::string& command) {
  add_output_flags(app, flags, command);
  app.add_option("--seed", flags.seed, "seed of everything that is random")->capture_default_str();
}

void check_alone(const CLI::App& app, const std::string& flag, const std::vector<std::string>& others) {
  if (app.count(flag) == 0) return;
  for (const std::string& other : others) {
    if (app.count(other) > 0) throw InputError(fmt::format("{}: expected no {}, which takes its place", other, flag));
  }
}

void print_json(const nlohmann::json& result) {
  fmt::print("{}\n", dump_json(result, 2));
  std::fflush(stdout);
}

}  // namespace firkin::cli

int main(int argc, char** argv) {
  using namespace firkin;
  cli::stored_command_line().assign(argv + 1, argv + argc);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write(), with a message
  try {
    return cli::run(argc, argv);
  } catch (const InputError& error) {
    return cli::report_error(error.what(), cli::kUsageError);
  } catch (const std::exception& error) {
    return cli::report_error(error.what(), cli::kFailure);
  }
}
