#include "firkin/bench/allreduce_bench.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <random>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kElementBytes = 4;
constexpr int kFewestSamplesPerRound = 2;
constexpr int kMostSamplesPerRound = 200;
constexpr int kQueueLength = 16;                    // calls queued back to back for the gap
constexpr int64_t kLargestQueueBytes = 256 * kMiB;  // of all queued buffers together

double slowest_rank_of(const ProcessGroup& group, double seconds) {
  double slowest = 0;
  for (const auto& rank : all_gather(group, {seconds})) slowest = std::max(slowest, rank[0]);
  return slowest;
}

// One size under measurement: a buffer per queued call, and what was measured so far.
struct SizeState {
  int64_t bytes = 0;
  std::vector<at::Tensor> buffers;
  int samples_per_round = kFewestSamplesPerRound;
  std::vector<double> isolated_s;
  std::vector<double> gap_s;
};

double time_isolated(const ProcessGroup& group, const SizeState& size) {
  barrier(group);
  const auto started = Clock::now();
  all_reduce(group, size.buffers[0]);
  return std::chrono::duration<double>(Clock::now() - started).count();
}

// Seconds per call.
double time_queued(const ProcessGroup& group, const SizeState& size) {
  barrier(group);
  std::vector<Work> queued;
  const auto started = Clock::now();
  for (const at::Tensor& buffer : size.buffers) queued.push_back(start_all_reduce(group, buffer));
  for (const Work& work : queued) wait(work, "queued all-reduce");
  return std::chrono::duration<double>(Clock::now() - started).count() / static_cast<double>(size.buffers.size());
}

SizeState prepare_size(const ProcessGroup& group, int64_t bytes, const AllReduceBenchOptions& options) {
  SizeState size{.bytes = bytes, .buffers = {}, .isolated_s = {}, .gap_s = {}};
  const auto queue_length = std::clamp<int64_t>(kLargestQueueBytes / bytes, 2, kQueueLength);
  for (int64_t i = 0; i < queue_length; ++i) size.buffers.push_back(at::zeros({bytes / kElementBytes}, at::kFloat));
  time_queued(group, size);                               // warm-up: connections and pages
  double once = std::numeric_limits<double>::infinity();  // with its barrier; the same on every rank, and so the counts below
  for (int i = 0; i < 5; ++i) {
    const auto started = Clock::now();
    time_isolated(group, size);
    once = std::min(once, slowest_rank_of(group, std::chrono::duration<double>(Clock::now() - started).count()));
  }
  const double wanted = options.seconds_per_size / options.rounds / std::max(once, 1e-6);
  size.samples_per_round = static_cast<int>(std::clamp<double>(wanted, kFewestSamplesPerRound, kMostSamplesPerRound));
  return size;
}

void measure_round(const ProcessGroup& group, SizeState& size) {
  std::vector<double> ours;
  const int queued_samples = std::max(kFewestSamplesPerRound, size.samples_per_round / static_cast<int>(size.buffers.size()));
  for (int i = 0; i < size.samples_per_round; ++i) ours.push_back(time_isolated(group, size));
  for (int i = 0; i < queued_samples; ++i) ours.push_back(time_queued(group, size));
  std::vector<double> slowest(ours.size(), 0.0);
  for (const auto& rank : all_gather(group, ours)) {
    for (size_t i = 0; i < ours.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
  }
  const auto middle = slowest.begin() + size.samples_per_round;
  size.isolated_s.insert(size.isolated_s.end(), slowest.begin(), middle);
  size.gap_s.insert(size.gap_s.end(), middle, slowest.end());
}

AllReduceRow row_of(const SizeState& size, int world_size) {
  const Summary isolated = summarize(size.isolated_s);
  return {.bytes = size.bytes,
          .world_size = world_size,
          .median_s = isolated.median,
          .gap_s = median(size.gap_s),
          .mean_s = isolated.mean,
          .stdev_s = isolated.stdev,
          .min_s = isolated.min,
          .max_s = isolated.max,
          .samples = isolated.count};
}

}  // namespace

std::vector<int64_t> allreduce_sizes(int64_t largest_bytes) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = kElementBytes; bytes < largest_bytes; bytes *= 4) sizes.push_back(bytes);
  sizes.push_back(std::max(kElementBytes, largest_bytes / kElementBytes * kElementBytes));
  return sizes;
}

AllReduceTable measure_allreduce(const ProcessGroup& group, const AllReduceBenchOptions& options) {
  std::vector<SizeState> sizes;
  for (const int64_t bytes : options.sizes) {
    if (bytes < kElementBytes || bytes % kElementBytes != 0) {
      throw InputError(fmt::format("all-reduce size {}: expected a positive multiple of {} bytes", bytes, kElementBytes));
    }
    sizes.push_back(prepare_size(group, bytes, options));
  }
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  for (int round = 0; round < options.rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const size_t index : order) measure_round(group, sizes[index]);
    if (options.on_progress) options.on_progress(fmt::format("round {}", round + 1));
  }
  AllReduceTable table;
  for (const SizeState& size : sizes) table.push_back(row_of(size, group.size));
  return table;
}

}  // namespace firkin
