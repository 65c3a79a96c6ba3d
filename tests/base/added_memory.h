// How much memory something takes while it runs.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "firkin/base/units.h"

namespace firkin {

// A line of /proc/self/status: "VmRSS:  1234 kB".
inline int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t value = 0;
    if (word == name && status >> value) return value * kKiB;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

// The most that this process had while `body` ran, over what it had before; nothing where the kernel does not forget earlier peaks.
inline std::optional<int64_t> added_memory_bytes(const std::function<void()>& body) {
  std::ofstream forget("/proc/self/clear_refs");
  if (!(forget << 5 << std::flush)) return std::nullopt;
  const int64_t before = status_bytes("VmRSS:");
  body();
  return status_bytes("VmHWM:") - before;
}

}  // namespace firkin
