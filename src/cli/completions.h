// Shell completions, from what CLI11 knows about the commands: every subcommand and flag, and the values that a flag lists.
//
//   source <(firkin completions bash)
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <utility>
#include <vector>

namespace firkin::cli {

// What may follow a flag, or stand alone as an argument.
struct CompletionValue {
  enum class Kind {
    kNone,   // nothing follows
    kOther,  // a number: nothing to offer
    kWords,  // one of `words`
    kFile,   // one of `words`, where there are any, or a file: any other text
  };
  Kind kind = Kind::kNone;
  std::vector<std::string> words;
};

struct CompletionFlag {
  std::vector<std::string> names;  // with their dashes: -b, --begin
  std::string summary;             // one line
  CompletionValue value;
};

// One command or subcommand: what can be typed after it.
struct CompletionCommand {
  std::string path;                                              // "firkin bench step"
  std::vector<std::pair<std::string, std::string>> subcommands;  // name, summary
  std::vector<CompletionFlag> flags;                             // its own, then those of the commands above that it accepts too
  CompletionValue argument;                                      // the first one that is no flag
};

// `app` and everything below it, from the top down. What has an empty group is hidden and left out.
std::vector<CompletionCommand> completion_commands(const CLI::App& app);

// The script for a shell.
std::string bash_completions(const std::vector<CompletionCommand>& commands);
std::string zsh_completions(const std::vector<CompletionCommand>& commands);
std::string fish_completions(const std::vector<CompletionCommand>& commands);

}  // namespace firkin::cli
