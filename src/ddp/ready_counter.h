// Which gradients of a step have come, and when a parameter's gradient is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace firkin {

// A parameter may get several gradients in one backward: one that is used inside and outside a re-entrant backward (activation
// checkpointing) gets one from each. How many it gets, and in which order parameters are complete, is seen in the first step and relied on
// from then on. A parameter that got none in that step is complete with the end of backward until a step has shown how many it gets.
// Not thread-safe.
class ReadyCounter {
 public:
  explicit ReadyCounter(size_t parameters) : expected_(parameters, kUnknown), received_(parameters, 0) {}

  void begin_step();

  enum class Arrival {
    kIncomplete,  // more is expected, or, in the first step, may be
    kComplete,    // the last one
    kTooMany,     // after the last one; from now on as many are expected
  };
  Arrival count(size_t parameter);

  bool is_complete(size_t parameter) const {
    return has_learned_ && expected_[parameter] != kUnknown && received_[parameter] >= expected_[parameter];
  }

  // What this step has shown: parameters by their last gradient, then those that got none; and how many gradients each got.
  std::vector<int64_t> observed_order() const;
  const std::vector<int64_t>& received() const { return received_; }

  bool has_learned() const { return has_learned_; }
  // received: gradients per parameter in a step that ended well; where nothing was known before, as many are expected from now on.
  void learn(const std::vector<int64_t>& received);

 private:
  static constexpr int64_t kUnknown = 0;

  std::vector<int64_t> expected_;
  std::vector<int64_t> received_;        // so far in this step
  std::vector<int64_t> observed_order_;  // in the first step
  bool has_learned_ = false;
  bool knows_all_ = false;
};

}  // namespace firkin
