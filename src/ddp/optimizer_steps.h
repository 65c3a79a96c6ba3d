// How often the program's optimisers have stepped since the last step ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace firkin {

// Note [Counted optimizer steps]
// When ranks agree on a step, they compare how often their optimisers have stepped since the step before. If the counts
// differ, the ranks have parameters of different steps of the program: a loss that depended on no parameter, say, has
// left one rank out of a step. Each rank reports its largest count, because one optimiser may call another.
//
// Not every step of an optimiser counts:
//   - After a gradient has arrived, a program may step with gradients of this rank alone as often as it likes, for
//     example in an inner loop whose steps it takes back.
//   - Code for checkpoints has optimisers step on zeros (GradientPipe::are_gradients_placeholders()) on the ranks where
//     they have no state yet. Once training has begun, an optimiser's first step after a synchronised one counts all
//     the same.
//
// Not thread-safe.
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
