#include "timed_visit.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "across_ranks.h"
#include "device_time.h"

namespace firkin {

std::function<void()> start_summing(const ProcessGroup& group, const at::Tensor& buffer) {
  return [&group, work = start_all_reduce(group, buffer)] { wait(group, work, "an all-reduce"); };
}

std::vector<std::vector<at::Tensor>> queue_buffers(const AllReduceSchedule& schedule, const std::vector<TimedSize>& sizes,
                                                   int64_t element_bytes, const at::TensorOptions& options) {
  constexpr int64_t kAlignment = 4096;  // bytes
  const int64_t alignment = kAlignment / static_cast<int64_t>(options.dtype().itemsize());
  const auto elements = [&](size_t size) { return sizes[size].bytes / element_bytes; };
  const auto apart = [&](size_t size) { return at::round_up(elements(size), alignment); };
  int64_t most = 0;
  for (size_t size = 0; size < sizes.size(); ++size) most = std::max(most, schedule.queue(size) * apart(size));
  const at::Tensor memory = at::zeros({most}, options);
  std::vector<std::vector<at::Tensor>> buffers(sizes.size());
  for (size_t size = 0; size < sizes.size(); ++size) {
    for (int i = 0; i < schedule.queue(size); ++i) buffers[size].push_back(memory.narrow(0, i * apart(size), elements(size)));
  }
  return buffers;
}

double time_calls(const ProcessGroup& group, StartCollective start, const at::Tensor& buffer, int calls) {
  const DeviceTime started = device_now(buffer.device());
  for (int i = 0; i < calls; ++i) start(group, buffer)();
  return seconds_between(started, device_now(buffer.device())) / calls;
}

double time_queue(const ProcessGroup& group, StartCollective start, std::span<const at::Tensor> buffers) {
  barrier(group);
  std::vector<std::function<void()>> queued;
  const DeviceTime started = device_now(buffers[0].device());
  for (const at::Tensor& buffer : buffers) queued.push_back(start(group, buffer));
  for (const auto& finish : queued) finish();
  return seconds_between(started, device_now(buffers[0].device()));
}

void run_visit(const ProcessGroup& group, StartCollective start, std::span<const at::Tensor> buffers, AllReduceSchedule& schedule,
               c10::function_ref<int64_t(std::span<const at::Tensor> queue)> check) {
  const auto began = std::chrono::steady_clock::now();
  const AllReduceVisit visit = schedule.next().value();
  const auto queue = buffers.first(static_cast<size_t>(visit.queue));
  const int64_t wrong = visit.checks ? check(queue) : 0;
  barrier(group);
  if (visit.warms_up) time_calls(group, start, buffers[0], 1);
  std::vector<double> seconds;
  const double before_s = seconds_since(began);
  for (int i = 0; i < visit.isolated; ++i) seconds.push_back(time_calls(group, start, buffers[0], visit.calls));
  const double isolated_s = seconds_since(began) - before_s;
  for (int i = 0; i < visit.queued; ++i) seconds.push_back(time_queue(group, start, queue));
  const double queued_s = seconds_since(began) - before_s - isolated_s;
  seconds.insert(seconds.end(), {isolated_s, queued_s, schedule.elapsed_s() + seconds_since(began)});
  schedule.tell(max_over_ranks(group, seconds), wrong);
}

}  // namespace firkin
