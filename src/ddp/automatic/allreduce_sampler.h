// Measures the curves a(x) and g(x) during a training: a little at a time, between steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "firkin/comm/process_group.h"
#include "measuring/allreduce_schedule.h"

namespace firkin {

// Seconds for which a step may be delayed. One call, or the first queue of a size, may take it a little beyond.
inline constexpr double kLongestDelay = 0.25;

// Runs an AllReduceSchedule a few visits at a time. All ranks tell their schedules the slowest rank's times, so that
// they do the same without further messages. Sums zeros, in memory of its own, which the destructor frees. Not
// thread-safe.
class AllReduceSampler {
 public:
  // gradient_bytes: the largest size of interest. For each element of element_bytes, one of `wire`'s dtype travels, on
  // its device.
  AllReduceSampler(ProcessGroup group, int64_t gradient_bytes, int64_t element_bytes, const at::TensorOptions& wire, double budget_s);

  // Collective. Measures for about kLongestDelay at most. Returns true if there is nothing left to do.
  bool measure_some();

  // Bytes are those of the gradients. Sizes that take too long are left out.
  AllReduceTable table() const { return allreduce_table(schedule_.series(), group_.size); }
  double spent_s() const { return schedule_.elapsed_s(); }
  // The budget was spent before all sizes had their turn: what the larger ones take is not known.
  bool is_cut_short() const { return schedule_.is_cut_short(); }

 private:
  void run(const AllReduceVisit& visit);

  ProcessGroup group_;
  std::vector<TimedSize> sizes_;
  std::vector<std::vector<at::Tensor>> buffers_;  // per size; all in one piece of memory
  AllReduceSchedule schedule_;
};

}  // namespace firkin
