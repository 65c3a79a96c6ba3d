// Flags that say how buckets are filled.
#pragma once

#include <optional>

#include "command.h"
#include "firkin/plan/bucket_assignment.h"

namespace firkin::cli {

struct RuleFlags {
  std::string rule = "close-when-full";
  std::optional<double> first_cap_mib;
};

// The check of a flag whose values are MiB: "25MB: expected MiB as a plain number, such as 25". What is no size is bytes_from_mib()'s to
// find.
CLI::Validator mib_number();

// --rule and --first-cap-mib.
void add_rule_flags(CLI::App& app, RuleFlags& flags);

// The options with the default cap. Throws InputError.
CapOptions cap_options(const RuleFlags& flags);

}  // namespace firkin::cli
