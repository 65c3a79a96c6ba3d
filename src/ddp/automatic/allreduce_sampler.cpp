#include "allreduce_sampler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "comm/across_ranks.h"
#include "comm/device_time.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLargestMemory = 64 * kMiB;
constexpr int64_t kMemoryAlignment = 4096;  // bytes; no two buffers share a cache line
constexpr double kSampleSeconds = 0.5e-3;   // what the calls of one sample take together, about
constexpr double kMostCalls = 20;           // of a sample
constexpr int64_t kLongestQueue = 4;        // about as many as a step has under way
constexpr int64_t kShortestQueue = 3;       // unless the delay or the memory allows none
constexpr int kFewestRounds = 3;            // that the budget is shared out for
constexpr int kRounds = 9;

int64_t aligned(int64_t elements, int64_t alignment) {
  return (elements + alignment - 1) / alignment * alignment;
}

}  // namespace

AllReduceSampler::AllReduceSampler(ProcessGroup group, int64_t gradient_bytes, int64_t element_bytes, const at::TensorOptions& wire,
                                   double budget_s)
    : group_(std::move(group)), budget_s_(budget_s) {
  const auto wire_bytes = static_cast<int64_t>(wire.dtype().itemsize());
  alignment_ = kMemoryAlignment / wire_bytes;
  const int64_t most_elements = std::max<int64_t>(gradient_bytes / element_bytes, 1);
  const int64_t memory =
      std::min(std::max(2 * aligned(most_elements, alignment_), kLongestQueue * alignment_), kLargestMemory / wire_bytes);
  memory_ = at::zeros({memory}, wire);
  for (const int64_t bytes : allreduce_sizes(gradient_bytes)) {
    Size size{.elements = std::max<int64_t>(bytes / element_bytes, 1), .isolated_s = {}, .queued_s = {}};
    size.bytes = size.elements * element_bytes;
    const bool is_new = sizes_.empty() || sizes_.back().elements < size.elements;
    if (is_new && size.elements <= memory) sizes_.push_back(std::move(size));
  }
}

at::Tensor AllReduceSampler::buffer(const Size& size, int64_t index) const {
  return memory_.narrow(0, index * aligned(size.elements, alignment_), size.elements);
}

// Per call, on this rank.
double AllReduceSampler::time_calls(const Size& size) const {
  const at::Tensor tensor = buffer(size, 0);
  barrier(group_);
  const DeviceTime started = device_now(memory_.device());
  for (int64_t i = 0; i < std::max<int64_t>(size.calls, 1); ++i) all_reduce(group_, tensor);
  return seconds_between(started, device_now(memory_.device())) / static_cast<double>(std::max<int64_t>(size.calls, 1));
}

double AllReduceSampler::time_queue(const Size& size) const {
  barrier(group_);
  std::vector<Work> works;
  const DeviceTime started = device_now(memory_.device());
  for (int64_t i = 0; i < size.queue; ++i) works.push_back(start_all_reduce(group_, buffer(size, i)));
  for (const Work& work : works) wait(group_, work, "a queued all-reduce");
  return seconds_between(started, device_now(memory_.device()));
}

// The first call touches connections and pages, and tells what else fits into the delay, and into a fair part of the budget.
void AllReduceSampler::plan_samples(Size& size) {
  size.once_s = max_over_ranks(group_, {time_calls(size)})[0];
  size.calls = static_cast<int64_t>(std::clamp(std::ceil(kSampleSeconds / size.once_s), 1.0, kMostCalls));
  const double fair_s = budget_s_ / kFewestRounds / static_cast<double>(sizes_.size());
  const auto fits = static_cast<int64_t>(std::min<double>(std::min(kLongestDelay / 2, fair_s) / size.once_s, kLongestQueue));
  const auto fits_delay = static_cast<int64_t>(std::min<double>(kLongestDelay / 2 / size.once_s, kShortestQueue));
  const int64_t fits_memory = memory_.numel() / aligned(size.elements, alignment_);
  size.queue = std::max<int64_t>(std::min(std::max(fits, fits_delay), fits_memory), 1);
}

void AllReduceSampler::visit(Size& size) {
  const auto started = Clock::now();
  if (size.calls == 0) plan_samples(size);
  const double isolated_s = time_calls(size);
  const double queued_s = size.queue > 1 ? time_queue(size) : 0;
  const std::vector<double> slowest = max_over_ranks(group_, {isolated_s, queued_s, seconds_since(started)});
  size.isolated_s.push_back(slowest[0]);
  if (size.queue > 1) size.queued_s.push_back(slowest[1]);
  size.visit_s = slowest[2];
}

// Of the next visit. Of a size that was never visited: one call, on the line through the two sizes before.
double AllReduceSampler::expected_s() const {
  if (round_ > 0) return sizes_[next_size()].visit_s;
  if (visited_ < 2) return 0;
  const Size& a = sizes_[visited_ - 2];
  const Size& b = sizes_[visited_ - 1];
  const double per_element_s = std::max(b.once_s - a.once_s, 0.0) / static_cast<double>(b.elements - a.elements);
  return b.once_s + per_element_s * static_cast<double>(sizes_[visited_].elements - b.elements);
}

size_t AllReduceSampler::next_size() const {
  return round_ % 2 == 1 ? sizes_.size() - 1 - visited_ : visited_;
}

void AllReduceSampler::advance() {
  ++visited_;
  if (round_ == 0 && visited_ < sizes_.size()) {
    is_cut_short_ = spent_s_ + expected_s() > budget_s_;
    if (is_cut_short_ || expected_s() > kLongestDelay) sizes_.resize(visited_);
  }
  if (visited_ == sizes_.size()) {
    visited_ = 0;
    ++round_;
  }
  is_done_ = is_cut_short_ || round_ == kRounds || (round_ > 0 && spent_s_ + expected_s() > budget_s_);
}

bool AllReduceSampler::measure_some() {
  const at::NoGradGuard no_grad;
  double delay_s = 0;
  while (!is_done_) {
    if (delay_s > 0 && delay_s + expected_s() > kLongestDelay) return false;
    Size& size = sizes_[next_size()];
    visit(size);
    delay_s += size.visit_s;
    spent_s_ += size.visit_s;
    advance();
  }
  return true;
}

AllReduceTable AllReduceSampler::table() const {
  AllReduceTable table;
  for (const Size& size : sizes_) {
    if (size.isolated_s.empty()) continue;
    AllReduceRow row{.bytes = size.bytes, .world_size = group_.size, .median_s = median(size.isolated_s)};
    if (!size.queued_s.empty()) row.gap_s = queued_gap_s(median(size.queued_s), row.median_s, static_cast<double>(size.queue));
    table.push_back(row);
  }
  return table;
}

}  // namespace firkin
