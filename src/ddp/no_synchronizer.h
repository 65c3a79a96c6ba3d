// The strategy none: every rank for itself, the baseline of exposed communication.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "firkin/ddp/module_parameters.h"
#include "synchronizer.h"

namespace firkin {

class NoSynchronizer final : public Synchronizer {
 public:
  NoSynchronizer(const std::vector<NamedTensor>& parameters, std::vector<int64_t> ready_order) : ready_order_(std::move(ready_order)) {
    for (const int64_t parameter : ready_order_) tensors_.push_back(parameters[static_cast<size_t>(parameter)].name);
  }

  const std::optional<StepFailure>& last_failure() const override { return no_failure_; }
  DataParallelStats stats() const override { return {.tensors = tensors_, .buckets = {}}; }
  const BucketPlan& plan() const override { return no_plan_; }
  const std::vector<int64_t>& ready_order() const override { return ready_order_; }

 private:
  std::vector<std::string> tensors_;
  std::vector<int64_t> ready_order_;
  std::optional<StepFailure> no_failure_;
  BucketPlan no_plan_;
};

}  // namespace firkin
