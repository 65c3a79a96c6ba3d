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
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/output_folder.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "import/import.h"
#include "report/report.h"
#include "results/results.h"

namespace firkin::cli {

// Runs a subcommand whose flags were parsed; returns the exit code. Throws InputError (exit code 2) or anything else (exit code 1).
using Run = std::function<int()>;

// A subcommand: `declare` adds its flags to `app` and returns what runs when the user chose it.
struct Command {
  const char* name;
  const char* summary;
  Run (*declare)(CLI::App& app);
};

// Adds each as a subcommand of `app`, which then needs one; what is returned runs the one that the user chose.
Run add_commands(CLI::App& app, std::span<const Command> commands);

// --help shows the options in the group "Options", and of the others their names; --help-all shows all.
void shorten_help(CLI::App& app);

// What the last of the words that were typed after the program's name may become, as `firkin __complete` prints it (completions.cpp).
std::string completions_of(const CLI::App& program, std::vector<std::string> words);

// The words that this process was started with after the program's name.
const std::vector<std::string>& command_line();

// The type, for CLI11, of a value that is a model's name or file.
inline constexpr const char* kModelType = "MODEL";

// The group of --help that is always explained.
inline constexpr const char* kMainGroup = "Options";

// A flag or argument whose default --help shows, in a group of it.
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& name, T& value, const std::string& help, const std::string& group = kMainGroup) {
  return app.add_option(name, value, help)->capture_default_str()->group(group);
}

// Flags that take sizes with their unit, "25MiB" (or several, "1MiB,25MiB"), and times, "90s" or "5m"; what is no such throws InputError.
// The default is the variable's value.
CLI::Option* add_size(CLI::App& app, const std::string& name, int64_t& bytes, const std::string& help);
CLI::Option* add_size(CLI::App& app, const std::string& name, std::optional<int64_t>& bytes, const std::string& help);
CLI::Option* add_sizes(CLI::App& app, const std::string& name, std::vector<int64_t>& bytes, const std::string& help);
CLI::Option* add_time(CLI::App& app, const std::string& name, double& seconds, const std::string& help);
CLI::Option* add_time(CLI::App& app, const std::string& name, std::optional<double>& seconds, const std::string& help);

// Throws InputError when `flag` was given and one of `others` too; `why` continues "cannot be combined with FLAG, ". Names with their
// dashes.
void check_alone(const CLI::App& app, const std::string& flag, const std::vector<std::string>& others,
                 const std::string& why = "which replaces it");

// How buckets are filled: --rule and --first-cap.
struct RuleFlags {
  std::string rule = "close-when-full";
  std::optional<int64_t> first_cap_bytes;
};
void add_rule_flags(CLI::App& app, RuleFlags& flags);
CapOptions cap_options(const RuleFlags& flags);  // with the default cap

// How others' all-reduce times are read: --in-place, --dtype, --unit, --where.
void add_import_flags(CLI::App& app, ImportOptions& options, const std::string& group = kMainGroup);

struct CommonFlags {
  bool json = false;
  bool quiet = false;
  bool settings = false;  // of other frameworks, to paste
  std::string out;
  uint64_t seed = 0;                     // where something is random
  const CLI::App* app = nullptr;         // that they were added to
  std::shared_ptr<OutputFolder> folder;  // once it is claimed; null in processes that write nothing
  bool continues = false;                // the result in it, which then is not set aside
};
// --json, --quiet and --out, whose default is firkin-out/COMMAND.
void add_output_flags(CLI::App& app, CommonFlags& flags, const std::string& command);

// --settings: of every framework.
void add_settings_flag(CLI::App& app, CommonFlags& flags);

// --json alone.
void add_json_flag(CLI::App& app, bool& json);

// The result on standard output, and nothing else there.
void print_json(const nlohmann::json& result);

// Before anything is measured: throws InputError when --out cannot be written to, or another run is writing into it. `writes`: whether this
// process is the one that will write.
void claim_output_folder(CommonFlags& common, bool writes = true);

// What Firkin ships beside itself (data/): $FIRKIN_DATA, or share/firkin of the folder into which the running program was installed,
// wherever that was moved; or data/ of the source tree, or of the Python package. Throws InputError when $FIRKIN_DATA is not a folder,
// RuntimeError when there is none of the others.
std::filesystem::path data_folder();

// The head of a result that started now, with every flag as it is in force. `environment` holds the version only.
RunHead start_run(const std::string& command, const CommonFlags& common);

// Gives what an earlier run left under these names another one (OutputFolder), which is said.
void set_aside(const CommonFlags& common, const std::vector<std::string>& names);

// results.json, report.html and `files`, as far as they are known, after set_aside(). Throws RuntimeError when the disk does not take them.
void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {});

// Writes the files, prints the result (as JSON with --json; else `text`, or all of it where there is none), and says what was written. When
// the files cannot be written the result is printed all the same, and the exception goes on.
void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {},
                const std::optional<std::string>& text = {});

}  // namespace firkin::cli
