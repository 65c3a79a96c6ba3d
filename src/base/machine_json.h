// A machine's state in a results.json.
#pragma once

#include <nlohmann/json.hpp>

#include "firkin/base/machine.h"

namespace firkin {

// {"host", "cpu", "os", "cores", "allowed_cpus", "cpu_quota", "governor", "load_average", "available_memory_bytes"}; null where the kernel
// does not say.
nlohmann::json machine_json(const MachineState& machine);

}  // namespace firkin
