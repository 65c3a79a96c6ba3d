#include "rule_flags.h"

#include <fmt/format.h>

#include <cstdlib>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin::cli {

CLI::Validator mib_number() {
  const auto check = [](const std::string& text) -> std::string {
    char* end = nullptr;
    std::strtod(text.c_str(), &end);
    if (*end == '\0') return "";
    return fmt::format("{}: expected MiB as a plain number, such as 25", text);
  };
  return CLI::Validator(check, "");  // without a description, which --help would show as the type
}

void add_rule_flags(CLI::App& app, RuleFlags& flags) {
  app.add_option("--rule", flags.rule, "how buckets are filled; PyTorch: close-when-full")
      ->capture_default_str()
      ->check(CLI::IsMember({"at-most", "close-when-full"}));
  app.add_option("--first-cap-mib", flags.first_cap_mib, "cap of the first bucket, MiB (default: no other)")->check(mib_number());
}

CapOptions cap_options(const RuleFlags& flags) {
  CapOptions options;
  options.rule = flags.rule == "at-most" ? CapRule::kAtMost : CapRule::kCloseWhenFull;
  if (flags.first_cap_mib) options.first_cap_bytes = bytes_from_mib(*flags.first_cap_mib, "--first-cap-mib");
  return options;
}

}  // namespace firkin::cli
