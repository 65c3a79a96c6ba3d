#include "rule_flags.h"

#include <fmt/format.h>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin::cli {

void add_rule_flags(CLI::App& app, RuleFlags& flags) {
  app.add_option("--rule", flags.rule, "at-most or close-when-full (PyTorch)")->capture_default_str();
  app.add_option("--first-cap-mib", flags.first_cap_mib, "cap of the first bucket, MiB (default: no other)");
}

CapOptions cap_options(const RuleFlags& flags) {
  CapOptions options;
  if (flags.rule == "at-most") {
    options.rule = CapRule::kAtMost;
  } else if (flags.rule == "close-when-full") {
    options.rule = CapRule::kCloseWhenFull;
  } else {
    throw InputError(fmt::format("--rule {}: expected at-most or close-when-full", flags.rule));
  }
  if (flags.first_cap_mib) options.first_cap_bytes = bytes_from_mib(*flags.first_cap_mib, "--first-cap-mib");
  return options;
}

}  // namespace firkin::cli
