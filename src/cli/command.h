// What the subcommands share: how one is declared, its flags with units, its folder, its end.
#pragma once

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "import/import.h"
#include "model/transformer_config.h"
#include "report/report.h"
#include "results/results.h"

namespace firkin::cli {

// Runs a subcommand whose flags were parsed; returns the exit code. Throws InputError (exit code 2) or anything else
// (exit code 1).
using Run = std::function<int()>;

// A subcommand: `declare` adds its flags to `app` and returns what to run if the user chose it.
struct Command {
  const char* name;
  const char* summary;
  Run (*declare)(CLI::App& app);
};

// Adds each command to `app`, which then requires one. Returns what runs the chosen one.
Run add_commands(CLI::App& app, std::span<const Command> commands);

// Makes --help explain only the group "Options" and list the names of the others; --help-all explains all.
void shorten_help(CLI::App& app);

// The words that this process was started with after the program's name.
const std::vector<std::string>& command_line();

// The group of --help that is always explained.
inline constexpr const char* kMainGroup = "Options";

// Adds a flag or an argument to a group of --help, which shows its default.
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& name, T& value, const std::string& help, const std::string& group = kMainGroup) {
  return app.add_option(name, value, help)->capture_default_str()->group(group);
}

// A check of a flag that takes a number from `least` to `most`. Unlike CLI::Range it refuses nan, and does not call a
// word a number out of range.
template <class Number>
std::function<std::string(const std::string&)> number_from(Number least, Number most) {
  return [least, most](const std::string& text) -> std::string {
    const auto number = parse_number<Number>(text);
    if (number && *number >= least && *number <= most) return "";
    return fmt::format("{}: expected a {} from {} to {}", text, std::is_integral_v<Number> ? "whole number" : "number", least, most);
  };
}

// Flags that take sizes with their unit, "25MiB" (or several, "1MiB,25MiB"), and times, "90s" or "5m". Anything else
// throws InputError. The default is the variable's value. add_bytes() also takes bytes without a unit, as nccl-tests
// does.
CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t& bytes, const std::string& help);
CLI::Option* add_size(CLI::App& app, const std::string& name, std::optional<int64_t>& bytes, const std::string& help);
CLI::Option* add_sizes(CLI::App& app, const std::string& name, std::vector<int64_t>& bytes, const std::string& help);
CLI::Option* add_time(CLI::App& app, const std::string& name, double& seconds, const std::string& help);
CLI::Option* add_time(CLI::App& app, const std::string& name, std::optional<double>& seconds, const std::string& help);

// How buckets are filled: --rule and --first-cap.
void add_rule_flags(CLI::App& app, CapOptions& rule);

// A model: --model, --dtype and its sizes.
struct ModelFlags {
  std::string model = "demo";
  std::map<std::string, int64_t> sizes;  // by their name in kConfigSizes: those that the user changed
  std::string dtype = "fp32";            // for parameters, gradients and activations
};

// Adds --model, --dtype and a flag for every size.
void add_model_flags(CLI::App& app, ModelFlags& flags);
// The same without --model.
void add_model_detail_flags(CLI::App& app, ModelFlags& flags);

// The names of all flags of a model, with their dashes.
std::vector<std::string> model_flag_names();

int64_t element_bytes(const ModelFlags& flags);

// The configuration that the flags describe. Throws InputError.
TransformerConfig model_config(const ModelFlags& flags);

// The model for people and scripts, without what it is trained on. Allocates no parameter.
ModelDescription describe_model(const ModelFlags& flags);

// How others' all-reduce times are read: --collective, --in-place, --dtype, --where.
void add_import_flags(CLI::App& app, ImportOptions& options, const std::string& group = kMainGroup);

// Where the sizes of gradients come from if a trace does not say them: --tensors or --model, or neither.
struct SizesFlags {
  std::string tensors, model;
};

// Throws InputError for a file or a model that cannot be read.
std::optional<GradientSizes> gradient_sizes(const SizesFlags& flags);

struct CommonFlags {
  bool json = false;
  bool quiet = false;
  std::string out;
  uint64_t seed = 0;                     // for whatever is random
  const CLI::App* app = nullptr;         // the command that they were added to
  std::shared_ptr<OutputFolder> folder;  // once it is claimed; null in processes that write nothing
  bool continues = false;                // whether the run continues the result in it, which is then not set aside
};

// Adds --json, --quiet and --out, whose default is firkin-out/COMMAND.
void add_output_flags(CLI::App& app, CommonFlags& flags, const std::string& command);

// Adds --json alone.
void add_json_flag(CLI::App& app, bool& json);

// Prints the result on standard output, where nothing else may be printed.
void print_json(const nlohmann::json& result);

// Throws InputError when --out cannot be written to or another run writes into it. Call it before anything is measured.
// `writes`: whether this process will write.
void claim_output_folder(CommonFlags& common, bool writes = true);

// The folder of the shipped data: $FIRKIN_DATA, or share/firkin of the (relocatable) installation, or data/ of the
// source tree or of the Python package. Throws InputError if $FIRKIN_DATA is not a folder, RuntimeError if none exists.
std::filesystem::path data_folder();

// The head of a result that starts now, with every flag's value. `environment` holds only the version.
RunHead start_run(const std::string& command, const CommonFlags& common);

// Renames what an earlier run left under these names (OutputFolder), and says so.
void set_aside(const CommonFlags& common, const std::vector<std::string>& names);

// After set_aside(), writes results.json, report.html and `files`. Throws RuntimeError if one cannot be written.
void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {});

// Writes the files, prints the result (JSON with --json; else `text`, or all of it if empty), and says what was
// written. If a file cannot be written, prints the result all the same and rethrows.
void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {},
                const std::optional<std::string>& text = {});

}  // namespace firkin::cli
