#include "ready_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// A dtype on a device: parameters of different kinds never share a bucket.
using Kind = std::pair<int, std::string>;

Kind kind_of(const at::Tensor& tensor) {
  return {static_cast<int>(tensor.scalar_type()), tensor.device().str()};
}

BucketPlan group_one_kind(const std::vector<int64_t>& sizes, const DataParallelOptions& options) {
  const auto count = static_cast<int64_t>(sizes.size());
  switch (options.strategy.grouping) {
    case Grouping::kOneBucket:
      return {{{0, count}}, {}};
    case Grouping::kOneTensorPerBucket:
      return one_tensor_per_bucket(sizes.size());
    case Grouping::kCap:
    case Grouping::kPlan:
      break;
  }
  return assign_buckets(sizes, options.cap);
}

}  // namespace

void ReadyCounter::begin_step() {
  std::ranges::fill(counts_, 0);
  observed_order_.clear();
}

ReadyCounter::Arrival ReadyCounter::count(size_t parameter) {
  const int64_t count = ++counts_[parameter];
  if (!has_learned_) {
    if (count > 1) std::erase(observed_order_, static_cast<int64_t>(parameter));
    observed_order_.push_back(static_cast<int64_t>(parameter));
    return Arrival::kIncomplete;
  }
  if (expected_[parameter] == kUnknown || count < expected_[parameter]) return Arrival::kIncomplete;
  if (count == expected_[parameter]) return Arrival::kComplete;
  expected_[parameter] = count;
  return Arrival::kTooMany;
}

std::vector<int64_t> ReadyCounter::observed_order() const {
  std::vector<int64_t> order = observed_order_;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] == 0) order.push_back(static_cast<int64_t>(i));
  }
  return order;
}

void ReadyCounter::learn(const std::vector<int64_t>& counts) {
  has_learned_ = true;
  for (size_t i = 0; i < expected_.size(); ++i) {
    if (expected_[i] == kUnknown) expected_[i] = counts[i];
  }
}

std::vector<int64_t> reversed_order(size_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

TensorProfile profile_in_order(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s) {
  std::vector<std::string> names;
  std::vector<int64_t> bytes;
  for (const NamedTensor& parameter : parameters) {
    names.push_back(parameter.name);
    bytes.push_back(static_cast<int64_t>(parameter.tensor.nbytes()));
  }
  return profile_in_order(names, bytes, order, ready_s, backward_s);
}

void check_communication(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order, const BucketPlan& plan) {
  for (const Bucket& bucket : plan.buckets) {
    const auto tensor_at = [&](int64_t position) { return parameters[static_cast<size_t>(order[static_cast<size_t>(position)])]; };
    const NamedTensor& first = tensor_at(bucket.first);
    for (int64_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
      if (kind_of(tensor_at(i).tensor) == kind_of(first.tensor)) continue;
      throw InputError(
          fmt::format("bucket plan: {} and {} share a bucket; expected one dtype and device per bucket", first.name, tensor_at(i).name));
    }
  }
}

CommunicationPlan plan_communication(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& ready_order,
                                     const DataParallelOptions& options) {
  for (const auto& [name, tensor] : parameters) {
    if (!options.strategy.shards || tensor.is_non_overlapping_and_dense()) continue;
    throw InputError(fmt::format("strategy sharded: the memory of {} has gaps; expected a dense parameter", name));
  }
  if (takes_plan(options)) {
    if (!options.plan) throw InputError("strategy planned: expected DataParallelOptions::plan");
    check_plan(*options.plan, std::ssize(ready_order));
    check_communication(parameters, ready_order, *options.plan);
    return {ready_order, *options.plan};
  }

  struct OneKind {
    std::vector<int64_t> positions, sizes;
  };
  std::map<Kind, OneKind> kinds;
  for (size_t position = 0; position < ready_order.size(); ++position) {
    const at::Tensor& tensor = parameters[static_cast<size_t>(ready_order[position])].tensor;
    OneKind& kind = kinds[kind_of(tensor)];
    kind.positions.push_back(static_cast<int64_t>(position));
    kind.sizes.push_back(static_cast<int64_t>(tensor.nbytes()));
  }
  std::vector<std::vector<int64_t>> buckets;  // each a list of ascending positions
  for (const auto& [name, kind] : kinds) {
    for (const Bucket& bucket : group_one_kind(kind.sizes, options).buckets) {
      const auto first = kind.positions.begin() + bucket.first;
      buckets.emplace_back(first, first + bucket.count);
    }
  }
  std::ranges::sort(buckets, {}, [](const auto& bucket) { return bucket.back(); });

  CommunicationPlan result;
  for (const auto& bucket : buckets) {
    result.plan.buckets.push_back({static_cast<int64_t>(result.order.size()), static_cast<int64_t>(bucket.size())});
    for (const int64_t position : bucket) result.order.push_back(ready_order[static_cast<size_t>(position)]);
  }
  return result;
}

}  // namespace firkin
