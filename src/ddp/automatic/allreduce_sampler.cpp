#include "allreduce_sampler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/device_time.h"
#include "comm/timed_visit.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr int64_t kLargestMemory = 64 * kMiB;  // on the wire
constexpr int64_t kMemoryAlignment = 4096;     // in bytes; so that no two buffers share a cache line

// The sizes, in bytes of whole gradients, for which the memory has room.
std::vector<TimedSize> sizes_to_sample(int64_t gradient_bytes, int64_t element_bytes, int64_t wire_bytes) {
  std::vector<TimedSize> sizes;
  for (const int64_t bytes : allreduce_sizes(gradient_bytes)) {
    const int64_t elements = std::max<int64_t>(bytes / element_bytes, 1);
    const bool is_new = sizes.empty() || sizes.back().bytes < elements * element_bytes;
    if (is_new && elements * wire_bytes <= kLargestMemory) sizes.push_back({.bytes = elements * element_bytes});
  }
  return sizes;
}

}  // namespace

AllReduceSampler::AllReduceSampler(ProcessGroup group, int64_t gradient_bytes, int64_t element_bytes, const at::TensorOptions& wire,
                                   double budget_s)
    : group_(std::move(group)),
      sizes_(sizes_to_sample(gradient_bytes, element_bytes, static_cast<int64_t>(wire.dtype().itemsize()))),
      schedule_(sizes_, {.seconds = budget_s,
                         // Gradients and buckets take as much.
                         .queue_bytes = std::min(2 * gradient_bytes, kLargestMemory),
                         .checks = false,
                         .most_samples = 1,
                         .delay_s = kLongestDelay}) {
  const int64_t alignment = kMemoryAlignment / static_cast<int64_t>(wire.dtype().itemsize());
  const auto elements = [&](size_t size) { return sizes_[size].bytes / element_bytes; };
  const auto stride = [&](size_t size) { return (elements(size) + alignment - 1) / alignment * alignment; };
  int64_t memory_elements = 0;
  for (size_t size = 0; size < sizes_.size(); ++size) memory_elements = std::max(memory_elements, schedule_.queue(size) * stride(size));
  const at::Tensor memory = at::zeros({memory_elements}, wire);
  for (size_t size = 0; size < sizes_.size(); ++size) {
    std::vector<at::Tensor>& buffers = buffers_.emplace_back();
    for (int i = 0; i < schedule_.queue(size); ++i) buffers.push_back(memory.narrow(0, i * stride(size), elements(size)));
  }
}

void AllReduceSampler::run(const AllReduceVisit& visit) {
  const std::vector<at::Tensor>& buffers = buffers_[visit.size];
  const c10::Device device = buffers[0].device();
  const auto isolated = [&] {
    const DeviceTime started = device_now(device);
    for (int i = 0; i < visit.calls; ++i) all_reduce(group_, buffers[0]);
    return seconds_between(started, device_now(device)) / visit.calls;
  };
  const auto queued = [&] {
    barrier(group_);
    std::vector<Work> works;
    const DeviceTime started = device_now(device);
    for (int i = 0; i < visit.queue; ++i) works.push_back(start_all_reduce(group_, buffers[static_cast<size_t>(i)]));
    for (const Work& work : works) wait(group_, work, "a queued all-reduce");
    return seconds_between(started, device_now(device));
  };
  const auto started = std::chrono::steady_clock::now();
  barrier(group_);
  if (visit.warms_up) all_reduce(group_, buffers[0]);
  schedule_.tell(time_visit(group_, visit, isolated, queued, [&] { return schedule_.elapsed_s() + seconds_since(started); }));
}

bool AllReduceSampler::measure_some() {
  const at::NoGradGuard no_grad;
  const double before_s = schedule_.elapsed_s();
  while (const std::optional<AllReduceVisit> visit = schedule_.next()) {
    const double delay_s = schedule_.elapsed_s() - before_s;
    if (delay_s > 0 && delay_s + schedule_.expected_s() > kLongestDelay) return false;
    run(*visit);
  }
  return true;
}

}  // namespace firkin
