// The order in which gradients become ready, when a parameter's gradient is complete, and the buckets over that order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/bucket_plan.h"
#include "measuring/steps.h"

namespace firkin {

// Counts the gradients of each parameter in a step. There may be several in one backward, for example from inside and
// outside a re-entrant backward (activation checkpointing). The first step shows how many each parameter gets and in
// which order they are complete, and later steps rely on that. A parameter that got none counts as incomplete until the
// end of backward, in every step until one shows how many it gets. Not thread-safe.
class ReadyCounter {
 public:
  explicit ReadyCounter(size_t parameters) : expected_(parameters, kUnknown), counts_(parameters, 0) {}

  void begin_step();

  enum class Arrival {
    kIncomplete,  // more gradients are expected or, in the first step, possible
    kComplete,    // the last one
    kTooMany,     // one more than expected; from now on as many are expected
  };
  Arrival count(size_t parameter);

  // What this step has shown: parameters in the order of their last gradient, then those that got none; and how many
  // gradients each got.
  std::vector<int64_t> observed_order() const;
  const std::vector<int64_t>& counts() const { return counts_; }

  bool has_learned() const { return has_learned_; }
  // counts: gradients per parameter in a step that ended well. Where nothing was known before, as many are expected
  // from now on.
  void learn(const std::vector<int64_t>& counts);

 private:
  static constexpr int64_t kUnknown = 0;

  std::vector<int64_t> expected_;
  std::vector<int64_t> counts_;          // so far in this step
  std::vector<int64_t> observed_order_;  // in the first step
  bool has_learned_ = false;
};

// The order in which tensors lie in the buckets, and the buckets over that order.
struct CommunicationPlan {
  std::vector<int64_t> order;  // parameter indices; the ready order itself unless dtypes or devices are mixed
  BucketPlan plan;

  bool operator==(const CommunicationPlan&) const = default;
};

// Count - 1, ..., 1, 0: registration order, reversed.
std::vector<int64_t> reversed_order(size_t count);

// profile_in_order() of measuring/steps.h for parameters.
TensorProfile profile_in_order(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s);

// Whether DataParallelOptions::plan decides over the buckets. The strategies ordered and sharded take a plan if there
// is one.
inline bool takes_plan(const DataParallelOptions& options) {
  return options.strategy.grouping == Grouping::kPlan || (options.strategy.wait == Wait::kAtFirstUse && options.plan.has_value());
}

// Buckets never mix dtypes or devices. Each kind of tensor is grouped by itself, and buckets are ordered by when their
// last gradient is ready. Throws InputError if an explicit plan does not cover the parameters or mixes kinds in one
// bucket, and for parameters that the strategy sharded cannot divide.
CommunicationPlan plan_communication(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& ready_order,
                                     const DataParallelOptions& options);

// Throws InputError unless the plan, which has passed check_plan, over the parameters in this order (indices into
// `parameters`) mixes no kinds in one bucket.
void check_communication(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order, const BucketPlan& plan);

}  // namespace firkin
