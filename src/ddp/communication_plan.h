// From options and a ready order to buckets of real tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

// The order in which tensors lie in the buckets, and the buckets over it.
struct CommunicationPlan {
  std::vector<int64_t> order;  // parameter indices; the ready order itself unless dtypes or devices are mixed
  BucketPlan plan;

  bool operator==(const CommunicationPlan&) const = default;
};

// Whether DataParallelOptions::plan decides. The strategy ordered takes a plan where there is one.
inline bool takes_plan(const DataParallelOptions& options) {
  return options.strategy.grouping == Grouping::kPlan || (options.strategy.wait == Wait::kAtFirstUse && options.plan.has_value());
}

// Buckets never mix dtypes or devices: each kind of tensor is grouped by itself, and buckets are ordered by when their last
// gradient is ready. Throws InputError when an explicit plan does not cover the parameters or mixes kinds in one bucket.
CommunicationPlan plan_communication(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& ready_order,
                                     const DataParallelOptions& options);

// Throws InputError unless the plan covers the parameters in this order (indices into `parameters`), mixes no kinds in one bucket, and cuts
// no tensor into more parts than it has elements.
void check_communication(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order, const BucketPlan& plan);

}  // namespace firkin
