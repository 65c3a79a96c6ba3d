// Runs the visits that an AllReduceSchedule asks for.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "firkin/comm/process_group.h"
#include "measuring/allreduce_schedule.h"

namespace firkin {

// Starts a collective on the buffer. Returns a function that waits for the result.
using StartCollective = std::function<void()> (*)(const ProcessGroup& group, const at::Tensor& buffer);
std::function<void()> start_summing(const ProcessGroup& group, const at::Tensor& buffer);

// For each of the schedule's sizes, the buffers of its longest queue, filled with zeros, which stay finite however
// often they are summed. All sizes share one tensor; the buffers of a size share no cache line. A buffer has one
// element for every element_bytes of its size.
std::vector<std::vector<at::Tensor>> queue_buffers(const AllReduceSchedule& schedule, const std::vector<TimedSize>& sizes,
                                                   int64_t element_bytes, const at::TensorOptions& options);

// Takes an isolated sample: `calls` calls, one after another. Returns the seconds per call on this rank. Collective.
double time_calls(const ProcessGroup& group, StartCollective start, const at::Tensor& buffer, int calls);

// Takes a queued sample: one call for each buffer, queued together after a barrier. Returns the seconds of all calls
// together on this rank. Collective.
double time_queue(const ProcessGroup& group, StartCollective start, std::span<const at::Tensor> buffers);

// Runs the schedule's next visit, and tells it the slowest rank's times, on every rank. Collective. buffers: those of
// the visit's size. check: see AllReduceVisit::checks.
void run_visit(const ProcessGroup& group, StartCollective start, std::span<const at::Tensor> buffers, AllReduceSchedule& schedule,
               c10::function_ref<int64_t(std::span<const at::Tensor> queue)> check);

}  // namespace firkin
