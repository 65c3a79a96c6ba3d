// The curves a(x) and g(x) for a training that goes on: a little at a time, between steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/plan/allreduce_table.h"

namespace firkin {

// Seconds for which a step may be delayed. One call, or the first queue of a size, may take it a little beyond.
inline constexpr double kLongestDelay = 0.25;

// Sizes from the smallest on, up to what fits into the delay, then all of them again and again, up and down, until the budget is spent. All
// decisions follow from times that were exchanged (the slowest rank's), so that the ranks agree without a word. Sums zeros, in memory of
// its own that it frees with itself. Not thread-safe.
class AllReduceSampler {
 public:
  // gradient_bytes: the largest size of interest. What travels for an element of element_bytes is one as `wire` says, on its device.
  AllReduceSampler(ProcessGroup group, int64_t gradient_bytes, int64_t element_bytes, const at::TensorOptions& wire, double budget_s);

  // Collective. Measures for about kLongestDelay at most; true: there is nothing left to do.
  bool measure_some();

  // Bytes are those of the gradients. Sizes that take too long are left out.
  AllReduceTable table() const;
  double spent_s() const { return spent_s_; }
  // The budget was spent before all sizes had their turn: what the larger ones take is not known.
  bool is_cut_short() const { return is_cut_short_; }

 private:
  struct Size {
    int64_t bytes = 0;
    int64_t elements = 0;
    int64_t calls = 0;   // of a sample; 0: not visited yet
    int64_t queue = 1;   // calls under way together; 1: the gap is not measured
    double once_s = 0;   // the first call
    double visit_s = 0;  // the last visit
    std::vector<double> isolated_s;
    std::vector<double> queued_s;  // of a whole queue
  };
  void visit(Size& size);
  void plan_samples(Size& size);
  double time_calls(const Size& size) const;
  double time_queue(const Size& size) const;
  at::Tensor buffer(const Size& size, int64_t index) const;
  double expected_s() const;
  size_t next_size() const;
  void advance();

  ProcessGroup group_;
  double budget_s_;
  at::Tensor memory_;
  int64_t alignment_ = 0;  // of buffers, in elements
  std::vector<Size> sizes_;
  int round_ = 0;
  size_t visited_ = 0;  // sizes in this round
  double spent_s_ = 0;
  bool is_cut_short_ = false;
  bool is_done_ = false;
};

}  // namespace firkin
