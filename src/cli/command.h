// What a subcommand is, and the table of all of them.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace firkin::cli {

// Runs a subcommand whose flags were parsed; returns the exit code. Throws InputError (exit code 2) or anything else (exit code 1).
using Run = std::function<int()>;

// A subcommand, one per file: `declare` adds its flags to `app` and returns what runs when the user chose it.
struct Command {
  const char* name;
  const char* summary;
  Run (*declare)(CLI::App& app);
};

// The type, for CLI11, of a value that is a model's name or file.
inline constexpr const char* kModelType = "MODEL";

// In the order in which --help lists them.
std::span<const Command> commands();

// Adds each as a subcommand of `app`, which then needs one; what is returned runs the one that the user chose.
Run add_commands(CLI::App& app, std::span<const Command> commands);

// What the last of the words that were typed after the program's name may become, as `firkin __complete` prints it (completions.cpp).
std::string completions_of(const CLI::App& program, std::vector<std::string> words);

// The words that this process was started with after the program's name.
const std::vector<std::string>& command_line();

struct OutputFolder;  // finish_run.h

// Flags that subcommands share.
struct CommonFlags {
  bool json = false;
  std::string out;
  uint64_t seed = 0;                     // where something is random
  const CLI::App* app = nullptr;         // that they were added to
  std::shared_ptr<OutputFolder> folder;  // once it is claimed; null on ranks that write nothing
};
// --json and --out, whose default is firkin-out/COMMAND.
void add_output_flags(CLI::App& app, CommonFlags& flags, const std::string& command);

// Those, and --seed.
void add_common_flags(CLI::App& app, CommonFlags& flags, const std::string& command);

// Throws InputError when `flag` was given and one of `others` too, which it takes the place of. Names with their dashes.
void check_alone(const CLI::App& app, const std::string& flag, const std::vector<std::string>& others);

// The result on standard output, and nothing else there.
void print_json(const nlohmann::json& result);

}  // namespace firkin::cli
