#include "firkin/base/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/control_group.h"
#include "firkin/base/cpus.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;

std::string first_word_in(const fs::path& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

std::string processor_name(const fs::path& root) {
  std::ifstream info(root / "proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::optional<std::array<double, 3>> load_average(const fs::path& root) {
  std::ifstream in(root / "proc/loadavg");
  std::array<double, 3> load{};
  if (in >> load[0] >> load[1] >> load[2]) return load;
  return std::nullopt;
}

// What the group may use less what it uses and cannot drop.
std::optional<int64_t> left_to(const ControlGroupFolder& group) {
  const bool v2 = group.version == 2;
  const auto limit = number_in_file(group.path / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = number_in_file(group.path / (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const int64_t can_drop = number_after(group.path / "memory.stat", v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - can_drop));
}

}  // namespace

MachineState machine_state(const fs::path& root) {
  utsname name{};
  uname(&name);
  return {.host = name.nodename,
          .cpu = processor_name(root),
          .operating_system = std::string(name.sysname) + " " + name.release + " " + name.machine,
          .cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
          .allowed_cpus = allowed_cpus(),
          .cpu_quota = cpu_quota(root),
          .governor = first_word_in(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
          .load_average = load_average(root),
          .available_memory_bytes = available_memory_bytes(root)};
}

int64_t available_memory_bytes(const fs::path& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  if (const auto kibibytes = number_after(root / "proc/meminfo", "MemAvailable:")) least = *kibibytes * kKiB;
  for (const ControlGroupFolder& group : control_group_folders("memory", root)) least = std::min(least, left_to(group).value_or(least));
  return least;
}

}  // namespace firkin
