// How often the program's optimisers have stepped since the last step ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace firkin {

// Ranks compare the largest of these counts when they agree on a step: if they differ, a rank has missed a step. Only the
// largest, because one optimiser may call another. Not thread-safe.
class OptimizerSteps {
 public:
  bool has_counted(const void* optimizer) const { return steps_.contains(optimizer); }
  // Returns how often this optimiser has stepped.
  uint64_t count(const void* optimizer) { return ++steps_[optimizer]; }
  // The optimiser has gone, and another may get its address. Its steps still count.
  void forget(const void* optimizer) {
    const auto gone = steps_.extract(optimizer);
    if (!gone.empty()) steps_[nullptr] = std::max(steps_[nullptr], gone.mapped());
  }
  // The steps of the optimiser that has stepped most often.
  uint64_t most() const {
    uint64_t most = 0;
    for (const auto& [optimizer, steps] : steps_) most = std::max(most, steps);
    return most;
  }
  void clear() { steps_.clear(); }

 private:
  std::map<const void*, uint64_t> steps_;  // by optimiser; null: those that have gone
};

}  // namespace firkin
