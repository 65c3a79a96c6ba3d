// How a run names what it measured. Internal to report/; comparison.h has the rest.
#pragma once

#include <string>

#include "json_fields.h"

namespace firkin {

// "demo, batch 4, sequence 128, float32", from the `model` of a configuration of bench step.
std::string configuration_name(const JsonFields& model);

}  // namespace firkin
