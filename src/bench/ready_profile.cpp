#include "bench/ready_profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "backward_clock.h"
#include "comm/across_ranks.h"
#include "ddp/ready_order.h"
#include "firkin/base/error.h"
#include "firkin/comm/device.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/summary.h"
#include "forward_recorder.h"
#include "ready_recorder.h"

namespace firkin {
namespace {

// One step's clock readings, in seconds.
struct ProfiledStep {
  double backward_s = 0;
  double forward_s = 0;
  double update_s = 0;
  std::vector<double> ready_s;   // per parameter
  std::vector<double> needed_s;  // per parameter
};

// What looks on.
struct Recorders {
  ReadyRecorder ready;
  ForwardRecorder forward;
};

// What a step whose phases are known took, and when its backward began.
DeviceTime step_in_phases(const ProcessGroup& group, Workload& workload, int64_t step, ProfiledStep& times) {
  const c10::Device device = device_of(workload);
  const DeviceTime forward_started = device_now(device);
  const at::Tensor loss = workload.loss(step);
  times.forward_s = seconds_between(forward_started, device_now(device));
  barrier(group);
  const DeviceTime started = device_now(device);
  loss.backward();
  times.backward_s = seconds_between(started, device_now(device));
  const DeviceTime update_started = device_now(device);
  workload.optimizer->step();
  times.update_s = seconds_between(update_started, device_now(device));
  return started;
}

// The same of a step that is one function; forward is all that comes before its backward.
DeviceTime step_as_a_whole(const ProcessGroup& group, Workload& workload, ProfiledStep& times) {
  barrier(group);
  const BackwardClock backward;
  const DeviceTime started = device_now(c10::kCPU);
  workload.whole_step();
  const DeviceTime ended = device_now(c10::kCPU);
  if (!backward.began()) return started;
  const DeviceTime backward_began{.host = *backward.began()};
  const DeviceTime backward_ended{.host = backward.ended()};
  times.forward_s = seconds_between(started, backward_began);
  times.backward_s = seconds_between(backward_began, backward_ended);
  times.update_s = seconds_between(backward_ended, ended);
  return backward_began;
}

// `recorders` may be null: then their times are not known.
ProfiledStep profiled_step(const ProcessGroup& group, Workload& workload, int64_t step, Recorders* recorders) {
  ProfiledStep times;
  forget_gradients(workload);
  synchronize(device_of(workload));
  if (recorders != nullptr) recorders->forward.begin(device_of(workload));
  const DeviceTime started = workload.whole_step ? step_as_a_whole(group, workload, times) : step_in_phases(group, workload, step, times);
  if (recorders == nullptr) return times;
  for (const DeviceTime& ready : recorders->ready.ready()) times.ready_s.push_back(seconds_between(started, ready));
  times.needed_s = recorders->forward.needed_s();
  return times;
}

// Why a step cannot be profiled; empty when it can.
std::string problem_of(const std::vector<NamedTensor>& parameters, const ProfiledStep& step) {
  if (step.backward_s == 0) return "the training step ran no backward pass on the thread that called it; expected one";
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (step.ready_s[i] > 0) continue;
    return fmt::format("the training step gave {} no gradient; expected one for every parameter that requires a gradient",
                       parameters[i].name);
  }
  return "";
}

// In one list that the ranks can compare: the wholes, ready times, needed times.
constexpr size_t kProfileWholes = 3;
std::vector<double> flattened(const ProfiledStep& step) {
  std::vector<double> values = {step.backward_s, step.forward_s, step.update_s};
  values.insert(values.end(), step.ready_s.begin(), step.ready_s.end());
  values.insert(values.end(), step.needed_s.begin(), step.needed_s.end());
  return values;
}

// `needed_s`: per parameter, in registration order, as `ready_order`'s indices.
void add_forward(const std::vector<int64_t>& ready_order, const std::vector<double>& needed_s, double forward_s, double update_s,
                 TensorProfile& profile) {
  const auto total_bytes = static_cast<double>(profile.total_bytes());
  for (size_t position = 0; position < ready_order.size(); ++position) {
    profile.needed_s.push_back(needed_s[static_cast<size_t>(ready_order[position])]);
    profile.update_s.push_back(total_bytes == 0 ? 0 : update_s * static_cast<double>(profile.bytes[position]) / total_bytes);
  }
  profile.forward_s = std::max(forward_s, std::ranges::max(profile.needed_s));
}

// Throws, on every rank, the first rank's problem.
void check_on_all_ranks(const ProcessGroup& group, const std::string& problem) {
  const std::vector<std::string> problems = gather_texts(group, "-" + problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].size() > 1) throw InputError(fmt::format("rank {}: {}", rank, problems[rank].substr(1)));
  }
}

}  // namespace

ReadyProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options) {
  if (workload.whole_step && !device_of(workload).is_cpu()) {
    throw InputError("the backward of a step that is one function is timed with the CPU's clock; expected a model on the CPU");
  }
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  int64_t step = 0;
  for (int i = 0; i < options.warmup_steps; ++i) profiled_step(group, workload, step++, nullptr);
  std::vector<double> bare;
  std::vector<double> hooked;
  std::vector<std::vector<double>> rows;  // [step]: flattened()
  bool has_awaiting = false;
  for (int i = 0; i < options.steps; ++i) {
    bare.push_back(max_over_ranks(group, {profiled_step(group, workload, step++, nullptr).backward_s})[0]);
    Recorders recorders{.ready = {parameters, ReadyWhen::kInBucket}, .forward = {*workload.module, parameters}};
    const ProfiledStep times = profiled_step(group, workload, step++, &recorders);
    if (i == 0) check_on_all_ranks(group, problem_of(parameters, times));
    rows.push_back(max_over_ranks(group, flattened(times)));
    hooked.push_back(rows.back()[0]);
    has_awaiting = recorders.forward.has_awaiting();
    if (options.on_progress) options.on_progress(fmt::format("backward {}", i + 1));
  }
  forget_gradients(workload);

  const std::vector<double> medians = column_medians(rows);
  const auto ready = medians.begin() + kProfileWholes;
  const auto needed = ready + static_cast<std::ptrdiff_t>(parameters.size());
  ReadyProfile profile;
  profile.ready_order = order_of_times({ready, needed});
  profile.tensors = profile_in_ready_order(parameters, {ready, needed}, medians[0]);
  if (has_awaiting) add_forward(profile.ready_order, {needed, medians.end()}, medians[1], medians[2], profile.tensors);
  profile.hooked_to_bare = paired_ratio(hooked, bare);
  profile.bare_backward_s = medians[0] / profile.hooked_to_bare.ratio;  // of the same moments, which two medians need not be
  return profile;
}

}  // namespace firkin
