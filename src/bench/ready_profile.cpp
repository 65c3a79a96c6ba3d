#include "bench/ready_profile.h"

#include <fmt/format.h>

#include <chrono>

#include "across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/summary.h"
#include "ready_recorder.h"

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

// One backward: its duration, then the ready times that the recorder (may be null) saw. Seconds.
std::vector<double> timed_backward(const ProcessGroup& group, Workload& workload, int64_t step, const ReadyRecorder* recorder) {
  workload.optimizer->zero_grad();
  const at::Tensor loss = workload.loss(step);
  barrier(group);
  synchronize_device(*workload.module);
  const auto started = Clock::now();
  loss.backward();
  synchronize_device(*workload.module);
  const auto seconds = [started](Clock::time_point time) { return std::chrono::duration<double>(time - started).count(); };
  std::vector<double> times{seconds(Clock::now())};
  if (recorder == nullptr) return times;
  for (const Clock::time_point ready : recorder->ready()) times.push_back(seconds(ready));
  return times;
}

}  // namespace

ReadyProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options) {
  if (!workload.module->parameters().empty() && !workload.module->parameters()[0].is_cpu()) {
    throw InputError("the profile of gradient-ready times is taken with the CPU's clock; expected a model on the CPU");
  }
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  int64_t step = 0;
  for (int i = 0; i < options.warmup_steps; ++i) timed_backward(group, workload, step++, nullptr);
  std::vector<double> bare;
  std::vector<double> hooked;
  std::vector<std::vector<double>> rows;  // [step][0: backward, then one per parameter]
  for (int i = 0; i < options.steps; ++i) {
    bare.push_back(max_over_ranks(group, timed_backward(group, workload, step++, nullptr))[0]);
    const ReadyRecorder recorder(parameters, ReadyWhen::kInBucket);
    rows.push_back(max_over_ranks(group, timed_backward(group, workload, step++, &recorder)));
    hooked.push_back(rows.back()[0]);
    if (options.on_progress) options.on_progress(fmt::format("backward {}", i + 1));
  }
  workload.optimizer->zero_grad();

  const std::vector<double> medians = column_medians(rows);
  ReadyProfile profile;
  profile.ready_order = order_of_times({medians.begin() + 1, medians.end()});
  profile.tensors = profile_in_ready_order(parameters, {medians.begin() + 1, medians.end()}, medians[0]);
  profile.bare_backward_s = median(bare);
  profile.hooked_to_bare = paired_ratio(hooked, bare, options.seed);
  return profile;
}

}  // namespace firkin
