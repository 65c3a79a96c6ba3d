// What a step's agreement costs: start_or(), ceil(log2 W) hops, against Gloo's all-reduce of the same bytes, a ring of 2(W-1).
//
//   cmake --build build --target agreement_hops
//   build/studies/agreement_hops [RANKS...]
//
// Ranks are threads of this process, over loopback: with more ranks than cores, what is measured is how often threads must be woken up. The
// two take turns in random order, in the same group; each line has the medians over the pairs, of the slowest rank, and the ratio of
// neighbours.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/comm/process_group.h"
#include "firkin/stats/estimates.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace firkin {
namespace {

constexpr int kPairs = 200;
constexpr int kCallsPerSample = 5;
constexpr int64_t kBytes = 64;  // flags, a step's number, and a bit for each of some hundred parameters

using Clock = std::chrono::steady_clock;
using Start = Work (*)(const ProcessGroup& group, at::Tensor bytes);

double seconds_per_call(const ProcessGroup& group, at::Tensor& bytes, Start start) {
  const auto started = Clock::now();
  for (int i = 0; i < kCallsPerSample; ++i) wait(group, start(group, bytes), "an agreement");
  return std::chrono::duration<double>(Clock::now() - started).count() / kCallsPerSample;
}

struct Samples {
  std::vector<double> ring, hops;  // seconds per call
};

Samples measure(const ProcessGroup& group) {
  const Connections connections = take_connections(group);
  at::Tensor bytes = at::zeros({kBytes}, at::kByte);
  for (const Start start : {start_all_reduce, start_or}) seconds_per_call(connections.group(), bytes, start);
  std::mt19937_64 random(1);
  Samples samples;
  for (int pair = 0; pair < kPairs; ++pair) {
    const bool ring_first = random() % 2 == 0;
    for (const bool ring : {ring_first, !ring_first}) {
      barrier(group);
      (ring ? samples.ring : samples.hops).push_back(seconds_per_call(connections.group(), bytes, ring ? start_all_reduce : start_or));
    }
  }
  return samples;
}

void keep_slowest(std::vector<double>& slowest, const std::vector<double>& rank) {
  slowest.resize(rank.size());
  for (size_t i = 0; i < rank.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
}

void compare(int size) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Samples> ranks(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { ranks[static_cast<size_t>(rank)] = measure(make_process_group(store, rank, size, {})); });
  }
  for (std::thread& thread : threads) thread.join();
  Samples slowest;
  for (const Samples& rank : ranks) {
    keep_slowest(slowest.ring, rank.ring);
    keep_slowest(slowest.hops, rank.hops);
  }
  const PairedRatio ratio = paired_ratio(slowest.hops, slowest.ring);
  fmt::print("{:>5} {:>12} {:>12} {:>7.3f}  [{:.3f}, {:.3f}] {:>6}\n", size, format_seconds(median(slowest.ring)),
             format_seconds(median(slowest.hops)), ratio.ratio, ratio.interval.low, ratio.interval.high, kPairs);
  std::fflush(stdout);
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  std::vector<int> sizes{2, 4, 8, 16};
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  fmt::print("{:>5} {:>12} {:>12} {:>7}  {:<14} {:>6}   {} bytes, {} cores\n", "ranks", "all-reduce", "start_or", "ratio", "95 % interval",
             "pairs", firkin::kBytes, std::thread::hardware_concurrency());
  for (const int size : sizes) firkin::compare(size);
}
