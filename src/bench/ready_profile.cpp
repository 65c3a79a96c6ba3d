#include "firkin/bench/ready_profile.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "firkin/base/error.h"
#include "firkin/ddp/gradient_buckets.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/summary.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

// Writes every gradient into its bucket, as DataParallel does, and notes when. Removes its hooks when it goes.
class ReadyRecorder {
 public:
  explicit ReadyRecorder(const std::vector<NamedTensor>& parameters) : parameters_(parameters), ready_(parameters.size()) {
    std::vector<at::Tensor> tensors;
    BucketPlan plan;
    for (const NamedTensor& parameter : parameters) {
      plan.buckets.push_back({static_cast<int64_t>(tensors.size()), 1});
      tensors.push_back(parameter.tensor);
    }
    constexpr double kAnyScale = 0.5;  // not 1, which would save the multiplication
    buckets_ = std::make_unique<GradientBuckets>(std::move(tensors), std::move(plan), kAnyScale);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].tensor, std::make_unique<Hook>(*this, i));
    }
  }
  ~ReadyRecorder() {
    for (const NamedTensor& parameter : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
  }
  ReadyRecorder(const ReadyRecorder&) = delete;
  ReadyRecorder& operator=(const ReadyRecorder&) = delete;

  const std::vector<Clock::time_point>& ready() const { return ready_; }

 private:
  struct Hook : torch::autograd::PostAccumulateGradHook {
    Hook(ReadyRecorder& owner_in, size_t index_in) : owner(owner_in), index(index_in) {}
    void operator()(const torch::autograd::Variable& /*tensor*/) override {
      owner.buckets_->place(static_cast<int64_t>(index));
      owner.ready_[index] = Clock::now();
    }
    ReadyRecorder& owner;
    size_t index;
  };

  const std::vector<NamedTensor>& parameters_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<Clock::time_point> ready_;
};

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

std::vector<double> slowest_rank(const ProcessGroup& group, const std::vector<double>& times) {
  std::vector<double> slowest(times.size(), 0.0);
  for (const auto& rank : all_gather(group, times)) {
    for (size_t i = 0; i < times.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
  }
  return slowest;
}

std::vector<double> column_medians(const std::vector<std::vector<double>>& rows) {
  std::vector<double> medians;
  std::vector<double> column(rows.size());
  for (size_t i = 0; i < rows[0].size(); ++i) {
    std::ranges::transform(rows, column.begin(), [i](const auto& row) { return row[i]; });
    medians.push_back(median(column));
  }
  return medians;
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
    bare.push_back(slowest_rank(group, timed_backward(group, workload, step++, nullptr))[0]);
    const ReadyRecorder recorder(parameters);
    rows.push_back(slowest_rank(group, timed_backward(group, workload, step++, &recorder)));
    hooked.push_back(rows.back()[0]);
    if (options.on_progress) options.on_progress(fmt::format("backward {}", i + 1));
  }
  workload.optimizer->zero_grad();

  const std::vector<double> medians = column_medians(rows);
  ReadyProfile profile;
  profile.ready_order.resize(parameters.size());
  std::iota(profile.ready_order.begin(), profile.ready_order.end(), 0);
  std::ranges::stable_sort(profile.ready_order, {}, [&](int64_t i) { return medians[static_cast<size_t>(i) + 1]; });
  double latest = 0;
  for (const int64_t parameter : profile.ready_order) {
    const auto index = static_cast<size_t>(parameter);
    latest = std::max(latest, medians[index + 1]);
    profile.tensors.names.push_back(parameters[index].name);
    profile.tensors.bytes.push_back(static_cast<int64_t>(parameters[index].tensor.nbytes()));
    profile.tensors.ready_s.push_back(latest);
  }
  profile.tensors.backward_s = std::max(latest, medians[0]);
  profile.bare_backward_s = median(bare);
  profile.hooked_to_bare = paired_ratio(hooked, bare, options.seed);
  return profile;
}

}  // namespace firkin
