#include "base/machine_json.h"

namespace firkin {
namespace {

template <typename Value>
nlohmann::json json_or_null(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json json_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

}  // namespace

nlohmann::json machine_json(const MachineState& machine) {
  return {{"host", json_or_null(machine.host)},
          {"cpu", json_or_null(machine.cpu)},
          {"os", machine.operating_system},
          {"cores", machine.cpus},
          {"allowed_cpus", machine.allowed_cpus},
          {"cpu_quota", json_or_null(machine.cpu_quota)},
          {"governor", json_or_null(machine.governor)},
          {"load_average", json_or_null(machine.load_average)},
          {"available_memory_bytes", machine.available_memory_bytes}};
}

}  // namespace firkin
