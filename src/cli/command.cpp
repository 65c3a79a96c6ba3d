#include "command.h"

#include <fmt/ranges.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <system_error>
#include <utility>

#include "firkin/base/json_text.h"
#include "firkin/base/progress.h"

namespace firkin::cli {
namespace {

using Words = std::vector<std::string>;

class ShortHelp : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode != CLI::AppFormatMode::Normal) return Formatter::make_help(app, std::move(name), mode);
    return make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) + main_group(app) +
           make_subcommands(app, mode) + "\n" + make_footer(app);
  }

  // Drops excluded flags, which the explanation covers. A long list of words has its default on a line of its own.
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = Formatter::make_option_opts(option);
    text.erase(std::min(text.find(" Excludes:"), text.size()));
    const size_t end = text.find("}=[");
    constexpr size_t kMost = 60;
    return end != std::string::npos && text.size() > kMost ? text.insert(end + 1, "\n     ") : text;
  }

 private:
  std::string main_group(const CLI::App* app) const {
    std::string text = make_group(kMainGroup, false, shown(app, kMainGroup));
    std::string others;
    for (const std::string& group : app->get_groups()) {
      if (group.empty() || group == kMainGroup) continue;
      Words names;
      for (const CLI::Option* option : shown(app, group)) names.push_back(option->get_name(false, false));
      others += wrapped(fmt::format("  {}: ", group), fmt::format("{}", fmt::join(names, " ")));
    }
    return others.empty() ? text : fmt::format("{}\nMore, which --help-all explains:\n{}", text, others);
  }

  static std::vector<const CLI::Option*> shown(const CLI::App* app, const std::string& group) {
    return app->get_options([&](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
  }
};

// "25MiB"
std::string short_size(int64_t bytes) {
  for (const auto& [unit, name] : {std::pair{kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}) {
    if (bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return fmt::format("{}B", bytes);
}

std::string short_time(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (static_cast<double>(whole) == seconds && whole >= 120 && whole % 60 == 0) return fmt::format("{}m", whole / 60);
  std::string text = format_seconds(seconds);
  std::erase(text, ' ');
  return text;
}

// Every flag's name and its value in force, except for flags that say where the result goes.
std::map<std::string, std::string> settings_of(const CLI::App& app) {
  std::map<std::string, std::string> settings;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    constexpr std::array kNotOfTheRun = {"help", "help-all", "json", "quiet", "out", "resume", "config"};
    if (option->get_group().empty() || std::ranges::find(kNotOfTheRun, name) != kNotOfTheRun.end()) continue;
    const Words values = option->count() > 0 ? option->results() : Words{option->get_default_str()};
    settings[name] = fmt::format("{}", fmt::join(values, ","));
  }
  return settings;
}

// d_model -> --d-model
std::string flag_name(std::string_view size) {
  std::string name = fmt::format("--{}", size);
  std::ranges::replace(name, '_', '-');
  return name;
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

void shorten_help(CLI::App& app) {
  app.formatter(std::make_shared<ShortHelp>());
  app.get_formatter()->column_width(26);
  app.set_help_all_flag("--help-all", "Explain every option and exit");
}

CLI::Option* add_sizes(CLI::App& app, const std::string& name, std::vector<int64_t>& bytes, const std::string& help) {
  Words defaults;
  for (const int64_t value : bytes) defaults.push_back(short_size(value));
  return app
      .add_option_function<Words>(
          name,
          [name, &bytes](const Words& texts) {
            bytes.clear();
            for (const std::string& text : texts) {
              const int64_t size = parse_size(text, name);
              if (std::ranges::find(bytes, size) != bytes.end())
                throw InputError(fmt::format("{}: {} is given twice; expected each value once", name, text));
              bytes.push_back(size);
            }
          },
          help)
      ->delimiter(',')
      ->type_name("SIZE")
      ->default_str(fmt::format("{}", fmt::join(defaults, ",")));
}

CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t& bytes, const std::string& help) {
  const std::string flag = name.substr(name.find("--"));
  const auto read = [flag, &bytes](const std::string& text) { bytes = parse_size(text, flag, /*takes_bytes=*/true); };
  return app.add_option_function<std::string>(name, read, help)->type_name("SIZE")->default_str(short_size(bytes));
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::optional<int64_t>& bytes, const std::string& help) {
  const auto read = [name, &bytes](const std::string& text) { bytes = parse_size(text, name); };
  return app.add_option_function<std::string>(name, read, help)->type_name("SIZE");
}

CLI::Option* add_time(CLI::App& app, const std::string& name, double& seconds, const std::string& help) {
  const auto read = [name, &seconds](const std::string& text) { seconds = parse_seconds(text, name); };
  return app.add_option_function<std::string>(name, read, help)->type_name("TIME")->default_str(short_time(seconds));
}

CLI::Option* add_time(CLI::App& app, const std::string& name, std::optional<double>& seconds, const std::string& help) {
  const auto read = [name, &seconds](const std::string& text) { seconds = parse_seconds(text, name); };
  return app.add_option_function<std::string>(name, read, help)->type_name("TIME");
}

void add_rule_flags(CLI::App& app, CapOptions& rule) {
  const std::string at_most = name_of(CapRule::kAtMost);
  const auto read = [&rule, at_most](const std::string& name) { rule.rule = name == at_most ? CapRule::kAtMost : CapRule::kCloseWhenFull; };
  app.add_option_function<std::string>("--rule", read, "when a bucket closes; PyTorch: close-when-full")
      ->check(CLI::IsMember({at_most, name_of(CapRule::kCloseWhenFull)}))
      ->default_str(name_of(rule.rule))
      ->group("Buckets");
  add_size(app, "--first-cap", rule.first_cap_bytes, "cap of the first bucket (default: --cap)")->group("Buckets");
}

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  add_value(app, "--model", flags.model, "a named model (firkin buckets lists them) or a\n.json file")->type_name("MODEL");
  add_model_detail_flags(app, flags);
}

void add_model_detail_flags(CLI::App& app, ModelFlags& flags) {
  const char* const group = "Model";
  add_value(app, "--dtype", flags.dtype, "type of parameters and gradients", group)->check(CLI::IsMember({"fp32", "bf16"}));
  for (const ConfigSize& size : kConfigSizes) {
    const std::string name(size.name);
    const auto set = [&flags, name](const int64_t& value) { flags.sizes[name] = value; };
    app.add_option_function<int64_t>(flag_name(name), set, fmt::format("override the model's {}", name))->group(group);
  }
}

std::vector<std::string> model_flag_names() {
  std::vector<std::string> names = {"--model", "--dtype"};
  for (const ConfigSize& size : kConfigSizes) names.push_back(flag_name(size.name));
  return names;
}

int64_t element_bytes(const ModelFlags& flags) {
  return flags.dtype == "bf16" ? 2 : kFloatBytes;
}

TransformerConfig model_config(const ModelFlags& flags) {
  TransformerConfig config = resolve_model(flags.model);
  std::string changed = "--model " + flags.model;
  for (const ConfigSize& size : kConfigSizes) {
    const auto found = flags.sizes.find(std::string(size.name));
    if (found == flags.sizes.end()) continue;
    config.*size.member = found->second;
    changed += fmt::format(" {} {}", flag_name(size.name), found->second);
  }
  check_config(config, changed);
  return config;
}

ModelDescription describe_model(const ModelFlags& flags) {
  const TransformerConfig config = model_config(flags);
  const std::vector<TensorSpec> tensors = tensor_specs(config);
  int64_t elements = 0;
  for (const TensorSpec& tensor : tensors) elements += tensor.numel;
  ModelDescription model;
  model.name = flags.sizes.empty() ? flags.model : flags.model + " (changed)";
  model.family = family_name(config.family);
  model.dtype = flags.dtype;
  model.tied = config.tied;
  model.vocab_size = config.vocab_size;
  model.context_length = config.context_length;
  model.d_model = config.d_model;
  model.d_ff = config.d_ff;
  model.num_layers = config.num_layers;
  model.num_heads = config.num_heads;
  model.parameters = elements;
  model.tensors = static_cast<int64_t>(tensors.size());
  model.gradient_bytes = elements * element_bytes(flags);
  return model;
}

void add_json_flag(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "print the result as JSON on standard output");
}

void add_output_flags(CLI::App& app, CommonFlags& flags, const std::string& command) {
  flags.app = &app;
  flags.out = "firkin-out/" + command;
  add_json_flag(app, flags.json);
  app.add_flag("--quiet", flags.quiet, "print the answer only, without progress")->group("Output");
  add_value(app, "--out", flags.out, "folder for results");
}

void print_json(const nlohmann::json& result) {
  fmt::print("{}\n", dump_json(result, 2));
  std::fflush(stdout);
}

void claim_output_folder(CommonFlags& common, bool writes) {
  if (common.quiet) Progress::silence();
  if (writes) {
    common.folder = std::make_shared<OutputFolder>(common.out, "--out");
  } else {
    check_output_folder(common.out, "--out");
  }
}

std::filesystem::path data_folder() {
  const auto is_folder = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
  };
  const char* named = std::getenv("FIRKIN_DATA");
  if (named && *named) {
    if (!is_folder(named)) throw InputError(fmt::format("FIRKIN_DATA={}: expected the folder with Firkin's data", named));
    return named;
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {FIRKIN_DATA_FROM_BIN, FIRKIN_DATA_FROM_LIBEXEC, FIRKIN_SOURCE_DATA, "../data"}) {
    const std::filesystem::path folder = (program / place).lexically_normal();  // an absolute one stays
    if (is_folder(folder)) return folder;
  }
  throw RuntimeError(fmt::format("no data folder: neither {} nor {} exists; set FIRKIN_DATA to the folder with Firkin's data",
                                 (program / FIRKIN_DATA_FROM_BIN).lexically_normal().string(), FIRKIN_SOURCE_DATA));
}

RunHead start_run(const std::string& command, const CommonFlags& common) {
  RunHead run = begin_head(command);
  run.command_line = command_line();
  run.command_line.insert(run.command_line.begin(), "firkin");
  if (common.app->get_option_no_throw("--seed")) run.seed = static_cast<int64_t>(common.seed);
  run.settings = settings_of(*common.app);
  return run;
}

void set_aside(const CommonFlags& common, const std::vector<std::string>& names) {
  if (!common.folder || common.continues) return;
  const Words kept = common.folder->set_aside(names);
  if (!kept.empty()) fmt::print(stderr, "firkin: kept the earlier result in {} as {}\n", common.out, fmt::join(kept, ", "));
}

void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files) {
  const Results written = with_files(results, files);
  set_aside(common, written.run.files);
  write_result(common.out, written, files);
}

void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files,
                const std::optional<std::string>& text) {
  const Results written = with_files(results, files);
  std::exception_ptr not_written;
  try {
    write_run_files(common, results, files);
  } catch (...) {
    not_written = std::current_exception();
  }
  if (common.json) {
    fmt::print("{}", results_text(written));
  } else {
    fmt::print("{}", text ? *text : common.quiet ? answer_in_text(written) : results_in_text(written));
    if (!not_written) fmt::print("\n{}", wrapped("wrote ", fmt::format("{}/: {}", common.out, fmt::join(written.run.files, ", "))));
    if (written.decision && !not_written) fmt::print("open  {}\n", (std::filesystem::path(common.out) / "report.html").string());
  }
  std::fflush(stdout);
  if (not_written) std::rethrow_exception(not_written);
}

}  // namespace firkin::cli
