// The scripts of completions.h. Each follows what was typed to the deepest subcommand, and offers what may come next.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "completions.h"

namespace firkin::cli {
namespace {

using ValueKind = CompletionValue::Kind;

// In single quotes, as bash and zsh read them.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string with_backslashes(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string fish_quoted(std::string_view text) {
  return fmt::format("'{}'", with_backslashes(text, "'\\"));
}

std::vector<std::string> flag_names(const CompletionCommand& command) {
  std::vector<std::string> names;
  for (const CompletionFlag& flag : command.flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  return names;
}

// The pattern of a `case` in bash that matches every path.
std::string path_patterns(const std::vector<CompletionCommand>& commands) {
  std::vector<std::string> paths;
  for (const CompletionCommand& command : commands) paths.push_back(shell_quoted(command.path));
  return fmt::format("{}", fmt::join(paths, " | "));
}

// bash's assignments of what is offered for a value.
std::string bash_offer(const CompletionValue& value) {
  if (value.kind == ValueKind::kOther) return "return";
  return fmt::format("words={} files={}", shell_quoted(fmt::format("{}", fmt::join(value.words, " "))),
                     value.kind == ValueKind::kFile ? "yes" : "");
}

// A branch of bash's `case "$path $previous"` for each flag with a value.
std::string bash_values(const CompletionCommand& command) {
  std::string text;
  for (const CompletionFlag& flag : command.flags) {
    if (flag.value.kind == ValueKind::kNone) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : flag.names) patterns.push_back(shell_quoted(command.path + " " + name));
    text += fmt::format("    {}) {} ;;\n", fmt::join(patterns, " | "), bash_offer(flag.value));
  }
  return text;
}

// A branch of bash's `case $path`: the words, flags and files that may come next.
std::string bash_next(const CompletionCommand& command) {
  std::vector<std::string> words = command.argument.words;
  for (const auto& [name, summary] : command.subcommands) words.push_back(name);
  return fmt::format(
      "        {}) words={} flags={} files={} ;;\n", shell_quoted(command.path), shell_quoted(fmt::format("{}", fmt::join(words, " "))),
      shell_quoted(fmt::format("{}", fmt::join(flag_names(command), " "))), command.argument.kind == ValueKind::kFile ? "yes" : "");
}

// What _arguments of zsh expects after a flag, or for an argument.
std::string zsh_value(const CompletionValue& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kOther:
      return ":value: ";
    case ValueKind::kWords:
      return fmt::format(":value:({})", fmt::join(value.words, " "));
    case ValueKind::kFile:
      if (!value.words.empty()) return fmt::format(":value:{{compadd {}; _files}}", fmt::join(value.words, " "));
      return ":file:_files";
  }
  return "";
}

std::string zsh_flag(const CompletionFlag& flag) {
  std::string text;
  for (const std::string& name : flag.names) {
    const bool takes_value = flag.value.kind != ValueKind::kNone;
    const std::string_view suffix = !takes_value ? "" : name.starts_with("--") ? "=" : "+";
    const std::string spec = fmt::format("({}){}{}[{}]{}", fmt::join(flag.names, " "), name, suffix,
                                         with_backslashes(flag.summary, "[]:\\"), zsh_value(flag.value));
    text += fmt::format(" \\\n    {}", shell_quoted(spec));
  }
  return text;
}

// _firkin_bench_step for "firkin bench step"
std::string zsh_function(std::string path) {
  std::ranges::replace(path, ' ', '_');
  std::ranges::replace(path, '-', '_');
  return fmt::format("_{}", path);
}

std::string zsh_command(const CompletionCommand& command) {
  std::string flags;
  for (const CompletionFlag& flag : command.flags) flags += zsh_flag(flag);
  if (command.subcommands.empty()) {
    const std::string argument = command.argument.kind == ValueKind::kNone
                                     ? ""
                                     : fmt::format(" \\\n    {}", shell_quoted(fmt::format("*{}", zsh_value(command.argument))));
    return fmt::format("{}() {{\n  _arguments{}{}\n}}\n", zsh_function(command.path), flags, argument);
  }
  std::string names, branches;
  for (const auto& [name, summary] : command.subcommands) {
    names += fmt::format("    {}\n", shell_quoted(with_backslashes(name, ":\\") + ":" + with_backslashes(summary, "\\")));
    branches += fmt::format("        {}) {} ;;\n", name, zsh_function(command.path + " " + name));
  }
  return fmt::format(R"({}() {{
  local context state state_descr line
  typeset -A opt_args
  local -a subcommands=(
{}  )
  _arguments -C{} \
    '1: :->subcommand' '*:: :->rest'
  case $state in
    subcommand) _describe subcommand subcommands ;;
    rest)
      case $line[1] in
{}      esac
      ;;
  esac
}}
)",
                     zsh_function(command.path), names, flags, branches);
}

// After `complete -c firkin -n ...`: -F offers files, -x a value without them.
std::string fish_value(const CompletionValue& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kOther:
      return " -x";
    case ValueKind::kWords:
      return fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(value.words, " "))));
    case ValueKind::kFile:
      if (!value.words.empty()) return fmt::format(" -r -F -a {}", fish_quoted(fmt::format("{}", fmt::join(value.words, " "))));
      return " -r -F";
  }
  return "";
}

std::string fish_command(const std::string& program, const CompletionCommand& command) {
  const std::string start = fmt::format("complete -c {} -n {}", program, fish_quoted(fmt::format("__firkin_at {}", command.path)));
  std::string text;
  for (const auto& [name, summary] : command.subcommands) text += fmt::format("{} -a {} -d {}\n", start, name, fish_quoted(summary));
  if (command.argument.kind == ValueKind::kWords) {
    text += fmt::format("{} -a {}\n", start, fish_quoted(fmt::format("{}", fmt::join(command.argument.words, " "))));
  } else if (command.argument.kind == ValueKind::kFile) {
    text += fmt::format("{} -F\n", start);
  }
  for (const CompletionFlag& flag : command.flags) {
    std::string names;
    for (const std::string& name : flag.names)
      names += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2)) : fmt::format(" -s {}", name.substr(1));
    text += fmt::format("{}{}{} -d {}\n", start, names, fish_value(flag.value), fish_quoted(flag.summary));
  }
  return text;
}

}  // namespace

std::string bash_completions(const std::vector<CompletionCommand>& commands) {
  std::string values, next;
  for (const CompletionCommand& command : commands) {
    values += bash_values(command);
    next += bash_next(command);
  }
  return fmt::format(R"(# Made by: firkin completions bash
_firkin() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path={0} word words= flags= files=
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $word" in
      {1}) path+=" $word" ;;
    esac
  done
  # --flag=value comes as three words.
  if [[ $current == = ]]; then current=; elif [[ $previous == = ]]; then previous=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  case "$path $previous" in
{2}    *)
      case $path in
{3}      esac
      [[ $current == -* || -z $words$files ]] && words=$flags files=
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  if [[ $files ]]; then
    mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$current")
    compopt -o filenames 2>/dev/null
  fi
}}
complete -F _firkin {0}
)",
                     commands.front().path, path_patterns(commands), values, next);
}

std::string zsh_completions(const std::vector<CompletionCommand>& commands) {
  std::string functions;
  for (const CompletionCommand& command : commands) functions += fmt::format("\n{}", zsh_command(command));
  // Loaded by compinit, the file is the function itself, and runs at the first use; read by `source`, it only defines and registers.
  return fmt::format(
      "#compdef {0}\n# Made by: firkin completions zsh\n{1}\nif [[ $funcstack[1] == {2} ]]; then {2}; else compdef {2} {0}; fi\n",
      commands.front().path, functions, zsh_function(commands.front().path));
}

std::string fish_completions(const std::vector<CompletionCommand>& commands) {
  std::vector<std::string> paths;
  for (const CompletionCommand& command : commands) paths.push_back(fish_quoted(command.path));
  const std::string program = commands.front().path;
  std::string lines;
  for (const CompletionCommand& command : commands) lines += fish_command(program, command);
  return fmt::format(R"(# Made by: firkin completions fish
function __firkin_at # true where the subcommands that were typed are these
  set -l path {0}
  for word in (commandline -opc)[2..-1]
    switch "$path $word"
      case {1}
        set path "$path $word"
    end
  end
  test "$path" = "$argv"
end
complete -c {0} -f
{2})",
                     program, fmt::join(paths, " "), lines);
}

}  // namespace firkin::cli
