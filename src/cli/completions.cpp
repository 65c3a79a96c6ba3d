// Shell completions. Only the program knows what may come next: the hidden command `firkin __complete WORD...` prints
// what the last word, which may be empty, can become, one per line, followed by a tab and a summary; ":files" stands
// for any file. `firkin completions SHELL` prints the few lines by which a shell asks.
#include "command.h"
#include "import/import.h"
#include "model/transformer_config.h"

namespace firkin::cli {
namespace {

constexpr const char* kFiles = ":files\n";

// Calls the program as the user called it. bash passes --flag=value as three words.
constexpr const char* kBash = R"(# Made by: firkin completions bash
_firkin() {
  local current=${COMP_WORDS[COMP_CWORD]} line
  [[ $current == = ]] && current=
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == :files ]]; then
      mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
      compopt -o filenames 2>/dev/null
    else
      COMPREPLY+=("${line%%$'\t'*}")
    fi
  done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _firkin firkin
)";

// Loaded by compinit, the file is the function itself, and runs at the first use; read by `source`, it only defines and
// registers.
constexpr const char* kZsh = R"(#compdef firkin
# Made by: firkin completions zsh
_firkin() {
  local line files=
  local -a offers
  for line in "${(@f)$(${~words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      '') ;;
      :files) files=yes ;;
      *) offers+=("${line%%$'\t'*}:${line#*$'\t'}") ;;
    esac
  done
  (( $#offers )) && _describe firkin offers
  [[ -n $files ]] && _files
}
if [[ $funcstack[1] == _firkin ]]; then _firkin; else compdef _firkin firkin; fi
)";

constexpr const char* kFish = R"(# Made by: firkin completions fish
function __firkin_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  for line in ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    if test "$line" = :files
      __fish_complete_path "$current"
    else
      echo $line
    end
  end
end
complete -c firkin -f -a '(__firkin_complete)'
)";

std::string offer(const std::string& word, std::string summary) {
  std::ranges::replace(summary, '\n', ' ');
  return fmt::format("{}\t{}\n", word, summary);
}

// CLI11 writes the values that CLI::IsMember allows into the name of the type: TEXT:{bash,zsh,fish}.
std::vector<std::string> listed_words(const std::string& type) {
  const size_t open = type.find('{');
  if (open == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, type.find('}', open) - open - 1), ',');
}

// The values to offer for a flag or an argument: its words, or files if it takes any text. None for numbers.
std::string offered_values(const CLI::Option& option, const std::string& begun) {
  const std::string type = option.get_type_name();
  std::vector<std::string> words = listed_words(type);
  const bool takes_files = words.empty() && (type.starts_with("TEXT") || type == kModelType);
  if (type == kModelType) {
    for (const NamedModel& model : named_models()) words.emplace_back(model.name);
  }
  if (type == kClusterType) words = cluster_names();
  std::string offers;
  for (const std::string& word : words) {
    if (word.starts_with(begun)) offers += offer(word, "");
  }
  return takes_files ? offers + kFiles : offers;
}

// The options of a command, and those of the commands above it that it accepts too.
std::vector<const CLI::Option*> visible_options(const CLI::App* app) {
  std::vector<const CLI::Option*> options;
  for (bool accepts = true; app != nullptr && accepts; accepts = app->get_fallthrough(), app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_group().empty()) options.push_back(option);
    }
  }
  return options;
}

const CLI::Option* flag_named(const std::vector<const CLI::Option*>& options, const std::string& name) {
  const auto found =
      std::ranges::find_if(options, [&](const CLI::Option* option) { return name.starts_with('-') && option->check_name(name); });
  return found == options.end() ? nullptr : *found;
}

bool takes_value(const CLI::Option* option) {
  return option != nullptr && option->get_items_expected_max() > 0;
}

std::string offered_flags(const std::vector<const CLI::Option*>& options, const std::string& begun) {
  std::vector<std::string> seen;
  std::string offers;
  for (const CLI::Option* option : options) {
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : names) {
      if (!name.starts_with(begun) || std::ranges::find(seen, name) != seen.end()) continue;
      seen.push_back(name);
      offers += offer(name, option->get_description());
    }
  }
  return offers;
}

}  // namespace

std::string completions_of(const CLI::App& program, std::vector<std::string> words) {
  if (words.empty() || words.back() == "=") words.emplace_back();
  std::erase(words, "=");
  const std::string begun = words.back();
  words.pop_back();
  const CLI::App* app = &program;
  const CLI::Option* flag = nullptr;  // a flag before the last word that still lacks its value
  for (const std::string& word : words) {
    const bool is_value = takes_value(flag);
    flag = is_value ? nullptr : flag_named(visible_options(app), word);
    const std::vector<const CLI::App*> below =
        app->get_subcommands([&](const CLI::App* sub) { return !is_value && sub->get_name() == word; });
    if (!below.empty()) app = below[0];
  }
  if (takes_value(flag)) return offered_values(*flag, begun);
  const std::vector<const CLI::Option*> options = visible_options(app);
  std::string offers;
  if (!begun.starts_with('-')) {
    for (const CLI::App* below : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (!below->get_group().empty() && below->get_name().starts_with(begun)) offers += offer(below->get_name(), below->get_description());
    }
    const auto argument = std::ranges::find_if(options, &CLI::Option::get_positional);
    if (argument != options.end()) offers += offered_values(**argument, begun);
  }
  return begun.starts_with('-') || offers.empty() ? offered_flags(options, begun) : offers;
}

Run declare_completions(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "shell to print the script for")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.footer(
      "Installed with the program. Otherwise, or in a running shell:\n"
      "  source <(firkin completions bash)\n"
      "  firkin completions fish | source");
  return [shell] {
    fmt::print("{}", *shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
    return 0;
  };
}

}  // namespace firkin::cli
