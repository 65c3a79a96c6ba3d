#include "bench/ready_profile.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "comm/across_ranks.h"
#include "ddp/backward_watch.h"
#include "ddp/ordered/ordered.h"
#include "ddp/ready_order.h"
#include "firkin/base/error.h"
#include "firkin/comm/device.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/stats/estimates.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace firkin {
namespace {

// ---- Observers

std::unique_ptr<GradientBuckets> bucket_per_parameter(const std::vector<NamedTensor>& parameters) {
  constexpr double kAnyScale = 0.5;  // not 1, which would save the multiplication
  return std::make_unique<GradientBuckets>(tensors_of(parameters), one_tensor_per_bucket(parameters.size()), kAnyScale);
}

// Notes when backward passes that the constructing thread starts begin and end, for as long as it lives. One at a time
// per thread. Autograd's threads, which work for a device, have that thread's callbacks and debugging information, and
// so find the way here.
class BackwardClock {
 public:
  explicit BackwardClock(c10::Device device)
      : seen_(std::make_shared<Seen>(device)),
        debug_info_(kind(), seen_),
        callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&function_begins).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}
  ~BackwardClock() { at::removeCallback(callback_); }
  BackwardClock(const BackwardClock&) = delete;
  BackwardClock& operator=(const BackwardClock&) = delete;

  // Passes since construction; one within another (activation checkpointing) is a part of that.
  int passes() const { return seen_->passes; }
  // When the first function of the first pass began.
  const DeviceTime& began() const { return seen_->began; }
  // When the last pass ended, with gradients accumulated and hooks run.
  const DeviceTime& ended() const { return seen_->ended; }

 private:
  // The only kind that LibTorch leaves to others.
  static c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO; }

  struct Seen : c10::DebugInfoBase {
    explicit Seen(c10::Device on) : device(on) {}
    c10::Device device;
    std::mutex mutex;  // guards what follows: functions may run on several of autograd's threads
    int passes = 0;
    int last_graph = -1;  // autograd's number of the last outermost pass
    DeviceTime began, ended;
  };

  static std::unique_ptr<at::ObserverContext> function_begins(const at::RecordFunction& /*function*/) {
    auto* const seen = static_cast<Seen*>(c10::ThreadLocalDebugInfo::get(kind()));
    if (seen == nullptr || !BackwardWatch::is_in_outermost()) return nullptr;
    const std::lock_guard lock(seen->mutex);
    const int graph = torch::autograd::get_current_graph_task_id();
    if (graph == std::exchange(seen->last_graph, graph)) return nullptr;
    if (seen->passes++ == 0) seen->began = device_now(seen->device);
    torch::autograd::Engine::get_default_engine().queue_callback([seen] { seen->ended = device_now(seen->device); });
    return nullptr;
  }

  std::shared_ptr<Seen> seen_;
  c10::DebugInfoGuard debug_info_;
  at::CallbackHandle callback_;
};

// Notes when the forward pass first uses each parameter: when a module that has it awaits it
// (firkin/ddp/await_parameters.h). Listens for as long as it lives.
class ForwardRecorder {
 public:
  ForwardRecorder(torch::nn::Module& module, const std::vector<NamedTensor>& parameters)
      : modules_(module, parameters),
        parameter_count_(parameters.size()),
        listening_(module, [this](const torch::nn::Module& awaiting) { module_awaits(awaiting); }) {}

  // Begins a forward pass.
  void begin(c10::Device device) {
    awaited_.clear();
    device_ = device;
    began_ = device_now(device);
  }

  // Per parameter, seconds from the last begin(); 0 for one that no module awaits, which must be there before forward
  // begins.
  std::vector<double> needed_s() {
    if (!modules_.has_learned()) modules_.learn();
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<double> needed(parameter_count_, kNever);
    for (const auto& [module, time] : awaited_) {
      const double seconds = seconds_between(began_, time);
      for (const size_t parameter : modules_.parameters_of(*module)) needed[parameter] = std::min(needed[parameter], seconds);
    }
    std::ranges::replace(needed, kNever, 0.0);
    return needed;
  }

  // Whether any module awaits.
  bool has_awaiting() const { return has_awaiting_; }

 private:
  void module_awaits(const torch::nn::Module& module) {
    awaited_.emplace_back(&module, device_now(device_));
    if (!modules_.has_learned()) modules_.note(module, 0);
    has_awaiting_ = true;
  }

  AwaitingModules modules_;
  bool has_awaiting_ = false;
  c10::Device device_ = c10::kCPU;
  DeviceTime began_;
  std::vector<std::pair<const torch::nn::Module*, DeviceTime>> awaited_;  // in this forward
  size_t parameter_count_;
  ForwardListening listening_;  // last, so that nobody is told of a module when the rest is gone
};

// ---- Steps

// Times a step whose phases are known. Returns when its backward began.
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

// The same for a step that is one function; forward is all that comes before its backward.
DeviceTime step_as_a_whole(const ProcessGroup& group, Workload& workload, ProfiledStep& times) {
  const c10::Device device = device_of(workload);
  barrier(group);
  const BackwardClock backward(device);
  DeviceTime started = device_now(device);
  workload.whole_step();
  const DeviceTime ended = device_now(device);
  times.backward_passes = backward.passes();
  if (times.backward_passes != 1) return started;
  times.forward_s = seconds_between(started, backward.began());
  times.backward_s = seconds_between(backward.began(), backward.ended());
  times.update_s = seconds_between(backward.ended(), ended);
  return backward.began();
}

// Without a recorder its ready and needed times stay empty.
ProfiledStep profiled_step(const ProcessGroup& group, Workload& workload, int64_t step, const ReadyRecorder* ready,
                           ForwardRecorder* forward) {
  ProfiledStep times;
  forget_gradients(workload);
  synchronize(device_of(workload));
  if (forward != nullptr) forward->begin(device_of(workload));
  const DeviceTime started = workload.whole_step ? step_as_a_whole(group, workload, times) : step_in_phases(group, workload, step, times);
  if (ready != nullptr) {
    for (const DeviceTime& time : ready->ready()) times.ready_s.push_back(seconds_between(started, time));
  }
  if (forward != nullptr) times.needed_s = forward->needed_s();
  return times;
}

// Why a step cannot be profiled; empty if it can.
std::string problem_of(const std::vector<NamedTensor>& parameters, const ProfiledStep& step) {
  if (step.backward_passes == 0) return "the training step ran no backward pass on the thread that called it; expected one";
  if (step.backward_passes > 1) return fmt::format("the training step ran {} backward passes; expected one", step.backward_passes);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (step.ready_s[i] > 0) continue;
    return fmt::format("the training step gave {} no gradient; expected one for every parameter that requires a gradient",
                       parameters[i].name);
  }
  return "";
}

// One list that ranks can exchange: whole phases, ready times, needed times.
constexpr size_t kProfileWholes = 3;
std::vector<double> flattened(const ProfiledStep& step) {
  std::vector<double> values = {step.backward_s, step.forward_s, step.update_s};
  values.insert(values.end(), step.ready_s.begin(), step.ready_s.end());
  values.insert(values.end(), step.needed_s.begin(), step.needed_s.end());
  return values;
}

// `needed_s`: per parameter, in registration order, like the indices in `ready_order`.
void add_forward(const std::vector<int64_t>& ready_order, const std::vector<double>& needed_s, double forward_s, double update_s,
                 TensorProfile& profile) {
  const auto total_bytes = static_cast<double>(profile.total_bytes());
  for (size_t position = 0; position < ready_order.size(); ++position) {
    profile.needed_s.push_back(needed_s[static_cast<size_t>(ready_order[position])]);
    profile.update_s.push_back(total_bytes == 0 ? 0 : update_s * static_cast<double>(profile.bytes[position]) / total_bytes);
  }
  profile.forward_s = std::max(forward_s, std::ranges::max(profile.needed_s));
}

// Throws the first rank's problem, if there is any, on every rank.
void check_on_all_ranks(const ProcessGroup& group, const std::string& problem) {
  const std::vector<std::string> problems = gather_texts(group, "-" + problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].size() > 1) throw InputError(fmt::format("rank {}: {}", rank, problems[rank].substr(1)));
  }
}

}  // namespace

ReadyRecorder::ReadyRecorder(const std::vector<NamedTensor>& parameters, ReadyWhen when)
    : buckets_(when == ReadyWhen::kInBucket ? bucket_per_parameter(parameters) : nullptr),
      ready_(parameters.size()),
      hooks_(parameters, [this, device = parameters.empty() ? c10::Device(c10::kCPU) : parameters[0].tensor.device()](size_t parameter) {
        if (buckets_) {
          buckets_->place(static_cast<int64_t>(parameter));
          buckets_->pack(static_cast<int64_t>(parameter));  // each in a bucket of its own
        }
        ready_[parameter] = device_now(device);
      }) {}

ProfiledStep profiled_step(const ProcessGroup& group, Workload& workload, int64_t step, const ReadyRecorder* recorder) {
  return profiled_step(group, workload, step, recorder, nullptr);
}

ReadyProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options) {
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  // On a device DataParallel copies a whole bucket at once; a copy of each gradient would take longer than the rest of
  // what hooks do.
  const ReadyWhen when = device_of(workload).is_cpu() ? ReadyWhen::kInBucket : ReadyWhen::kAccumulated;
  int64_t step = 0;
  for (int i = 0; i < options.warmup_steps; ++i) profiled_step(group, workload, step++, nullptr);
  std::vector<double> bare;
  std::vector<double> hooked;
  std::vector<std::vector<double>> rows;  // [step]: flattened()
  bool has_awaiting = false;
  for (int i = 0; i < options.steps; ++i) {
    bare.push_back(max_over_ranks(group, {profiled_step(group, workload, step++, nullptr).backward_s})[0]);
    const ReadyRecorder ready(parameters, when);
    ForwardRecorder forward(*workload.module, parameters);
    const ProfiledStep times = profiled_step(group, workload, step++, &ready, &forward);
    if (i == 0) check_on_all_ranks(group, problem_of(parameters, times));
    rows.push_back(max_over_ranks(group, flattened(times)));
    hooked.push_back(rows.back()[0]);
    has_awaiting = forward.has_awaiting();
    if (options.on_progress) options.on_progress(fmt::format("backward {}", i + 1));
    if (options.is_enough && options.is_enough(i + 1)) break;
  }
  forget_gradients(workload);

  const std::vector<double> medians = column_medians(rows);
  const auto ready = medians.begin() + kProfileWholes;
  const auto needed = ready + static_cast<std::ptrdiff_t>(parameters.size());
  ReadyProfile result;
  TensorProfile& tensors = result.profile.tensors;
  result.ready_order = order_of_times({ready, needed});
  tensors = profile_in_order(parameters, result.ready_order, {ready, needed}, medians[0]);
  if (has_awaiting) add_forward(result.ready_order, {needed, medians.end()}, medians[1], medians[2], tensors);
  add_bare_backward(hooked, bare, result.profile);
  return result;
}

}  // namespace firkin
