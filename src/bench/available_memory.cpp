#include "bench/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "firkin/base/units.h"

namespace firkin {
namespace {

// "MemAvailable:   16315788 kB"
std::optional<int64_t> available_to_the_machine() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kibibytes = 0;
    if (key == "MemAvailable:" && file >> kibibytes) return kibibytes * kKiB;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// A file that holds one number; "max" is none.
std::optional<int64_t> number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

std::optional<int64_t> available_to_the_group() {
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return std::nullopt;
  return std::max<int64_t>(0, *limit - *used);
}

}  // namespace

int64_t available_memory_bytes() {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  return std::min(available_to_the_machine().value_or(kUnknown), available_to_the_group().value_or(kUnknown));
}

}  // namespace firkin
