#include "bench/ready_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/summary.h"
#include "forward_recorder.h"
#include "ready_recorder.h"

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

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

double seconds_since(Clock::time_point started) {
  return std::chrono::duration<double>(Clock::now() - started).count();
}

// `recorders` may be null: then their times are not known.
ProfiledStep profiled_step(const ProcessGroup& group, Workload& workload, int64_t step, Recorders* recorders) {
  ProfiledStep times;
  workload.optimizer->zero_grad();
  synchronize_device(*workload.module);
  if (recorders != nullptr) recorders->forward.begin();
  const auto forward_started = Clock::now();
  const at::Tensor loss = workload.loss(step);
  synchronize_device(*workload.module);
  times.forward_s = seconds_since(forward_started);
  barrier(group);
  const auto started = Clock::now();
  loss.backward();
  synchronize_device(*workload.module);
  times.backward_s = seconds_since(started);
  const auto update_started = Clock::now();
  workload.optimizer->step();
  synchronize_device(*workload.module);
  times.update_s = seconds_since(update_started);
  if (recorders == nullptr) return times;
  for (const Clock::time_point ready : recorders->ready.ready()) {
    times.ready_s.push_back(std::chrono::duration<double>(ready - started).count());
  }
  times.needed_s = recorders->forward.needed_s();
  return times;
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
  const auto total_bytes = static_cast<double>(std::accumulate(profile.bytes.begin(), profile.bytes.end(), int64_t{0}));
  for (size_t position = 0; position < ready_order.size(); ++position) {
    profile.needed_s.push_back(needed_s[static_cast<size_t>(ready_order[position])]);
    profile.update_s.push_back(total_bytes == 0 ? 0 : update_s * static_cast<double>(profile.bytes[position]) / total_bytes);
  }
  profile.forward_s = std::max(forward_s, std::ranges::max(profile.needed_s));
}

}  // namespace

ReadyProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options) {
  if (!workload.module->parameters().empty() && !workload.module->parameters()[0].is_cpu()) {
    throw InputError("the profile of gradient-ready times is taken with the CPU's clock; expected a model on the CPU");
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
    rows.push_back(max_over_ranks(group, flattened(profiled_step(group, workload, step++, &recorders))));
    hooked.push_back(rows.back()[0]);
    has_awaiting = recorders.forward.has_awaiting();
    if (options.on_progress) options.on_progress(fmt::format("backward {}", i + 1));
  }
  workload.optimizer->zero_grad();

  const std::vector<double> medians = column_medians(rows);
  const auto ready = medians.begin() + kProfileWholes;
  const auto needed = ready + static_cast<std::ptrdiff_t>(parameters.size());
  ReadyProfile profile;
  profile.ready_order = order_of_times({ready, needed});
  profile.tensors = profile_in_ready_order(parameters, {ready, needed}, medians[0]);
  if (has_awaiting) add_forward(profile.ready_order, {needed, medians.end()}, medians[1], medians[2], profile.tensors);
  profile.bare_backward_s = median(bare);
  profile.hooked_to_bare = paired_ratio(hooked, bare);
  return profile;
}

}  // namespace firkin
