// Empties the processor's caches of everything that was used before.
#pragma once

#include <vector>

namespace firkin {

class CacheSweep {
 public:
  CacheSweep();  // allocates twice the last-level cache, at least 64 MiB

  // Writes to every cache line of the array.
  void operator()();

 private:
  std::vector<char> array_;
};

}  // namespace firkin
