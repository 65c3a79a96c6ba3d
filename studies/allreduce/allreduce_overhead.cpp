// What `firkin bench allreduce` adds to the call that it measures.
//
//   cmake --build build --target allreduce_overhead
//   build/studies/allreduce_overhead --ranks 2
//
// What is asked of it: within 3 % of a bare loop over c10d's own call, at every size. A sample of the harness and one of the loop, of as
// many calls, take turns in random order; the ratio is that of neighbours, so that what else the machine does meets both.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "comm/timed_visit.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

constexpr double kSecondsPerSize = 10;   // about; a large size takes longer
constexpr double kSampleSeconds = 1e-3;  // what the calls of one sample take together, about
constexpr double kLargestOverhead = 0.03;

using Clock = std::chrono::steady_clock;

// The loop that one would write. Seconds per call on this rank.
double bare_loop(const ProcessGroup& group, std::vector<at::Tensor>& tensors, int calls) {
  const auto backend = group.c10d->getBackend(c10::DeviceType::CPU);
  const auto started = Clock::now();
  for (int i = 0; i < calls; ++i) backend->allreduce(tensors)->wait();
  return std::chrono::duration<double>(Clock::now() - started).count() / calls;
}

// Sample by sample, on the slowest rank.
std::vector<double> slowest(const ProcessGroup& group, const std::vector<double>& ours) {
  std::vector<double> result(ours.size(), 0.0);
  for (const auto& rank : all_gather(group, ours)) {
    for (size_t i = 0; i < ours.size(); ++i) result[i] = std::max(result[i], rank[i]);
  }
  return result;
}

// Whether the ratio is within the bar; its interval says how sure that is.
bool compare(const ProcessGroup& group, int64_t bytes) {
  std::vector<at::Tensor> tensors{at::zeros({bytes / 4}, at::kFloat)};
  bare_loop(group, tensors, 10);
  const double call_s = all_gather(group, {bare_loop(group, tensors, 10)})[0][0];
  const int calls = static_cast<int>(std::clamp(kSampleSeconds / call_s, 1.0, 100.0));
  const int pairs = static_cast<int>(std::clamp(kSecondsPerSize / (2 * calls * call_s), 200.0, 2000.0));
  std::mt19937_64 random(static_cast<uint64_t>(bytes));
  std::vector<double> bare, firkin;
  for (int pair = 0; pair < pairs; ++pair) {
    const bool bare_first = random() % 2 == 0;
    if (bare_first) bare.push_back(bare_loop(group, tensors, calls));
    firkin.push_back(time_calls(group, start_summing, tensors[0], calls));
    if (!bare_first) bare.push_back(bare_loop(group, tensors, calls));
  }
  bare = slowest(group, bare);
  firkin = slowest(group, firkin);
  const PairedRatio ratio = paired_ratio(firkin, bare);
  const bool within = std::abs(ratio.ratio - 1) <= kLargestOverhead;
  if (group.rank == 0) {
    fmt::print("{:>8} {:>10} {:>10} {:>7.3f}  [{:.3f}, {:.3f}] {:>6}{}\n", format_bytes(bytes), format_seconds(median(bare)),
               format_seconds(median(firkin)), ratio.ratio, ratio.interval.low, ratio.interval.high, pairs, within ? "" : "  beyond 3 %");
    std::fflush(stdout);
  }
  return within;
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>&) {
    if (group.rank == 0)
      fmt::print("{:>8} {:>10} {:>10} {:>7}  {:<14} {:>6}\n", "size", "bare loop", "firkin", "ratio", "95 % interval", "pairs");
    bool within = true;
    for (const int64_t bytes : sizes_between(4, 64 * kMiB, 4)) within = compare(group, bytes) && within;
    return within ? 0 : 1;
  });
}
