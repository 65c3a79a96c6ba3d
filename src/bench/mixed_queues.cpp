#include "bench/mixed_queues.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <optional>
#include <random>

#include "base/stopwatch.h"
#include "bench/allreduce_bench.h"
#include "bench/known_sums.h"
#include "cache_sweep.h"
#include "comm/across_ranks.h"
#include "firkin/base/units.h"
#include "firkin/plan/timeline.h"
#include "firkin/stats/interval.h"

namespace firkin {
namespace {

constexpr size_t kCalls = 4;
constexpr int64_t kSmallestBytes = 16 * kKiB, kLargestBytes = 16 * kMiB;  // of buckets, about

std::vector<int64_t> sizes_to_mix(const AllReduceTable& table, int world_size, double seconds) {
  const double longest_s = seconds / static_cast<double>(kCalls * kFewestSamples);
  std::vector<int64_t> sizes;
  for (const AllReduceRow& row : table) {
    const bool is_bucket = row.bytes >= kSmallestBytes && row.bytes <= kLargestBytes;
    if (row.world_size == world_size && row.gap_s && is_bucket && row.median_s <= longest_s) sizes.push_back(row.bytes);
  }
  return sizes;
}

}  // namespace

MixedQueues measure_mixed_queues(const ProcessGroup& group, const AllReduceTable& table, const MixedQueuesOptions& options) {
  MixedQueues queues;
  const std::vector<int64_t> sizes = sizes_to_mix(table, group.size, options.seconds);
  if (sizes.size() < 2) return queues;
  const auto started = std::chrono::steady_clock::now();
  const auto largest = static_cast<int64_t>(kLargestBytes / kFloatBytes);
  const at::Tensor memory = at::zeros({kCalls * largest}, at::TensorOptions(at::kFloat).device(group.device));
  std::optional<CacheSweep> sweep;
  if (options.cold) sweep.emplace();
  std::mt19937_64 random(options.seed);
  const auto time_one = [&](std::vector<int64_t>& bytes) {
    std::vector<at::Tensor> buffers;
    for (size_t i = 0; i < kCalls; ++i) {
      bytes.push_back(sizes[random() % sizes.size()]);
      buffers.push_back(memory.narrow(0, static_cast<int64_t>(i) * largest, bytes.back() / kFloatBytes));
    }
    if (sweep) (*sweep)();
    return max_over_ranks(group, {time_queue(group, buffers)})[0];
  };
  std::vector<int64_t> warm_up;
  time_one(warm_up);
  const auto time_left = [&] { return of_rank_0(group, options.seconds - seconds_since(started)); };
  while (queues.seconds.size() < kFewestSamples || time_left() > 0) queues.seconds.push_back(time_one(queues.bytes.emplace_back()));
  return queues;
}

std::vector<double> ratios_to(const MixedQueues& queues, const CommCosts& costs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < queues.seconds.size(); ++i) {
    TensorProfile ready_at_once;
    BucketPlan plan;
    for (const int64_t bytes : queues.bytes[i]) {
      plan.buckets.push_back({.first = static_cast<int64_t>(plan.buckets.size()), .count = 1});
      ready_at_once.bytes.push_back(bytes);
      ready_at_once.ready_s.push_back(0);
    }
    ratios.push_back(queues.seconds[i] / simulate(ready_at_once, plan, costs, {}).end_s);
  }
  return ratios;
}

}  // namespace firkin
