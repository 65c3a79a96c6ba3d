// What `firkin bench allreduce` adds to the call that it measures.
//
//   cmake --preset release -DFIRKIN_BUILD_BENCHMARKS=ON && cmake --build --preset release --target allreduce_overhead
//   build/bench/allreduce_overhead --ranks 2
//
// What is asked of it: within 3 % of a bare loop over c10d's own call, at every size. In each block both run once, in random order, as long
// as each other; a block's time is the median of its samples, and the ratio is that of the blocks, paired.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "firkin/base/units.h"
#include "firkin/bench/allreduce_bench.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

constexpr int kBlocks = 20;
constexpr double kSecondsPerBlock = 0.2;  // of either
constexpr double kLargestOverhead = 1.03;

using Clock = std::chrono::steady_clock;

// The loop that one would write: the backend's all-reduce and wait, again and again, with as many calls between two readings of the clock
// as the harness takes. Seconds per call, the median over readings, on the slowest rank.
double bare_loop(const ProcessGroup& group, int64_t bytes, int calls) {
  std::vector<at::Tensor> tensors{at::zeros({bytes / 4}, at::kFloat)};
  const auto backend = group.c10d->getBackend(c10::DeviceType::CPU);
  const auto read_clock = [&] {
    const auto started = Clock::now();
    for (int i = 0; i < calls; ++i) backend->allreduce(tensors)->wait();
    return std::chrono::duration<double>(Clock::now() - started).count();
  };
  const double warm_s = std::max({read_clock(), read_clock(), read_clock()});
  const int readings = static_cast<int>(std::clamp(kSecondsPerBlock / all_gather(group, {warm_s})[0][0], 3.0, 1000.0));
  std::vector<double> seconds;
  for (int i = 0; i < readings; ++i) seconds.push_back(read_clock() / calls);
  const auto ranks = all_gather(group, {median(seconds)});
  return std::ranges::max(ranks, {}, [](const auto& rank) { return rank[0]; })[0];
}

AllReduceSeries harness(const ProcessGroup& group, int64_t bytes) {
  return measure_allreduce(group, {.sizes = {bytes}, .seconds = 2 * kSecondsPerBlock, .on_progress = {}})[0];
}

// Whether the ratio is within the bar.
bool compare(const ProcessGroup& group, int64_t bytes) {
  const int calls = harness(group, bytes).calls_per_sample;
  std::mt19937_64 random(static_cast<uint64_t>(bytes));
  std::vector<double> bare, ours;
  for (int block = 0; block < kBlocks; ++block) {
    const bool bare_first = random() % 2 == 0;
    if (bare_first) bare.push_back(bare_loop(group, bytes, calls));
    ours.push_back(median(harness(group, bytes).isolated_s));
    if (!bare_first) bare.push_back(bare_loop(group, bytes, calls));
  }
  const PairedRatio ratio = paired_ratio(ours, bare, 0);
  const bool within = ratio.ratio <= kLargestOverhead && ratio.ratio >= 1 / kLargestOverhead;
  if (group.rank == 0) {
    fmt::print("{:>10} {:>10} {:>10} {:>8.3f}  [{:.3f}, {:.3f}]{}\n", format_bytes(bytes), format_seconds(median(bare)),
               format_seconds(median(ours)), ratio.ratio, ratio.interval.low, ratio.interval.high, within ? "" : "  above 3 %");
    std::fflush(stdout);
  }
  return within;
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>&) {
    if (group.rank == 0) fmt::print("{:>10} {:>10} {:>10} {:>8}  95 % interval\n", "size", "bare loop", "firkin", "ratio");
    bool within = true;
    for (const int64_t bytes : sizes_between(4, 64 * kMiB, 4)) within = compare(group, bytes) && within;
    return within ? 0 : 1;
  });
}
