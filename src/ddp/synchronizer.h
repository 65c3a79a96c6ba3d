// What keeps the gradients of a module equal on all ranks, as DataParallel sees it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "firkin/ddp/data_parallel.h"

#include <torch/optim/optimizer.h>

namespace firkin {

// Four of them: in our own buckets, in these and behind the next forward as well, through c10d::Reducer, and not at all. The methods do
// what those of DataParallel of the same name promise.
class Synchronizer {
 public:
  virtual ~Synchronizer() = default;

  virtual void finish() {}
  virtual void abandon(const std::string& /*reason*/) {}
  // Throws InputError where take_part_without_data() cannot work.
  virtual void check_can_join() const {}
  // One step of the ranks that have data, on a rank that has none. False when no rank has.
  virtual bool take_part_without_data() { return false; }
  // Returns what was set before.
  virtual bool set_gradient_synchronization(bool /*on*/) { return true; }

  virtual void step(torch::optim::Optimizer& optimizer) { optimizer.step(); }
  virtual void drain() {}

  virtual const std::optional<StepFailure>& last_failure() const = 0;
  virtual DataParallelStats stats() const = 0;
  virtual const BucketPlan& plan() const = 0;
  virtual const std::vector<int64_t>& ready_order() const = 0;
};

}  // namespace firkin
