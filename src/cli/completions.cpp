#include "completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "command.h"
#ifdef FIRKIN_WITH_TORCH
#include "model/named_models.h"
#endif

namespace firkin::cli {
namespace {

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// CLI11 writes the values that CLI::IsMember allows into the name of the type: TEXT:{bash,zsh,fish}.
std::vector<std::string> listed_words(const std::string& type) {
  const size_t open = type.find('{');
  const size_t close = type.find('}', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return {};
  std::vector<std::string> words;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

// Flags that name a model take a file as well, so that no list checks their values.
std::vector<std::string> model_names() {
  std::vector<std::string> names;
#ifdef FIRKIN_WITH_TORCH
  for (const NamedModel& model : named_models()) names.emplace_back(model.name);
#endif
  return names;
}

CompletionValue value_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string type = option.get_type_name();
  if (type == kModelType) return {.kind = CompletionValue::Kind::kFile, .words = model_names()};
  CompletionValue value{.kind = CompletionValue::Kind::kOther, .words = listed_words(type)};
  if (!value.words.empty()) {
    value.kind = CompletionValue::Kind::kWords;
  } else if (type.starts_with("TEXT")) {
    value.kind = CompletionValue::Kind::kFile;
  }
  return value;
}

CompletionFlag flag_of(const CLI::Option& option) {
  CompletionFlag flag{.names = {}, .summary = one_line(option.get_description()), .value = value_of(option)};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  return flag;
}

bool has_flag(const CompletionCommand& command, const CompletionFlag& flag) {
  return std::ranges::any_of(command.flags, [&](const CompletionFlag& other) { return other.names == flag.names; });
}

void walk(const CLI::App& app, const CompletionCommand* above, std::vector<CompletionCommand>& commands) {
  CompletionCommand command;
  command.path = above ? fmt::format("{} {}", above->path, app.get_name()) : app.get_name();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    if (!option->get_positional()) {
      command.flags.push_back(flag_of(*option));
    } else if (command.argument.kind == CompletionValue::Kind::kNone) {
      command.argument = value_of(*option);
    }
  }
  if (above && app.get_fallthrough()) {
    for (const CompletionFlag& flag : above->flags) {
      if (!has_flag(command, flag)) command.flags.push_back(flag);
    }
  }
  const std::vector<const CLI::App*> below = app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
  for (const CLI::App* sub : below) command.subcommands.emplace_back(sub->get_name(), one_line(sub->get_description()));
  commands.push_back(command);
  for (const CLI::App* sub : below) walk(*sub, &command, commands);
}

}  // namespace

std::vector<CompletionCommand> completion_commands(const CLI::App& app) {
  std::vector<CompletionCommand> commands;
  walk(app, nullptr, commands);
  return commands;
}

Run declare_completions(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "which shell's script is printed")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.footer(
      "Installed with the program. Without that, or in a running shell:\n"
      "  source <(firkin completions bash)\n"
      "  firkin completions fish | source");
  return [shell, &app] {
    const std::vector<CompletionCommand> commands = completion_commands(*app.get_parent());
    const auto script = *shell == "bash" ? bash_completions : *shell == "zsh" ? zsh_completions : fish_completions;
    fmt::print("{}", script(commands));
    return 0;
  };
}

}  // namespace firkin::cli
