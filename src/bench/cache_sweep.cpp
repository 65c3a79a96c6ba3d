#include "cache_sweep.h"

#include <unistd.h>

#include <algorithm>

#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr size_t kLineBytes = 64;
constexpr int64_t kLeastBytes = 64 * kMiB;  // where the system does not know its cache

size_t sweep_bytes() {
  return static_cast<size_t>(std::max<int64_t>(kLeastBytes, 2 * int64_t{sysconf(_SC_LEVEL3_CACHE_SIZE)}));
}

}  // namespace

CacheSweep::CacheSweep() : array_(sweep_bytes()) {}

void CacheSweep::operator()() {
  for (size_t i = 0; i < array_.size(); i += kLineBytes) ++array_[i];
}

}  // namespace firkin
