#include "bench/ready_profile.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "comm/across_ranks.h"
#include "comm/device_time.h"
#include "ddp/awaiting_modules.h"
#include "ddp/backward_watch.h"
#include "ddp/buckets.h"
#include "ddp/ready_order.h"
#include "firkin/base/error.h"
#include "firkin/comm/device.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/bucket_plan.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace firkin {
namespace {

// When a gradient counts as ready.
enum class ReadyWhen {
  kAccumulated,  // autograd has finished it
  kInBucket,     // it was also written into its bucket, as DataParallel does, so that it could be sent
};

// Records when gradients become ready, by hooks on all parameters, for as long as it lives.
class ReadyRecorder {
 public:
  ReadyRecorder(const std::vector<NamedTensor>& parameters, ReadyWhen when)
      : ready_(parameters.size()),
        hooks_(parameters,
               [this, &parameters, device = parameters.empty() ? c10::Device(c10::kCPU) : parameters[0].tensor.device()](size_t parameter) {
                 if (buckets_) {
                   refuse_sparse_gradient(parameters[parameter]);
                   buckets_->place(static_cast<int64_t>(parameter));
                   buckets_->pack(static_cast<int64_t>(parameter));  // each in a bucket of its own
                 }
                 ready_[parameter] = device_now(device);
               }) {
    constexpr double kAnyScale = 0.5;  // not 1, which would save the multiplication
    if (when == ReadyWhen::kInBucket) buckets_.emplace(tensors_of(parameters), one_tensor_per_bucket(parameters.size()), kAnyScale);
  }

  // Per parameter: when it was ready in the last backward that reached it.
  const std::vector<DeviceTime>& ready() const { return ready_; }

 private:
  std::optional<GradientBuckets> buckets_;  // none for kAccumulated
  std::vector<DeviceTime> ready_;
  ParameterHooks hooks_;  // last: hooks run until it is destroyed
};

// Records when backward passes that the constructing thread starts begin and end, for as long as it lives. One at a time
// per thread; autograd's threads for devices inherit its callbacks and debugging information.
class BackwardClock {
 public:
  explicit BackwardClock(c10::Device device)
      : passes_(std::make_shared<Passes>(device)),
        debug_info_(kind(), passes_),
        callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(&function_begins).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}
  ~BackwardClock() { at::removeCallback(callback_); }
  BackwardClock(const BackwardClock&) = delete;
  BackwardClock& operator=(const BackwardClock&) = delete;

  // Passes since construction; one within another (activation checkpointing) is a part of that.
  int passes() const { return passes_->count; }
  // When the first function of the first pass began.
  const DeviceTime& began() const { return passes_->began; }
  // When the last pass ended, with gradients accumulated and hooks run.
  const DeviceTime& ended() const { return passes_->ended; }

 private:
  // The only kind of debugging information that LibTorch leaves to others.
  static c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO; }

  struct Passes : c10::DebugInfoBase {
    explicit Passes(c10::Device on) : device(on) {}
    c10::Device device;
    std::mutex mutex;  // guards what follows: functions may run on several of autograd's threads
    int count = 0;
    int last_graph = -1;  // autograd's number of the last outermost pass
    DeviceTime began, ended;
  };

  static std::unique_ptr<at::ObserverContext> function_begins(const at::RecordFunction& /*function*/) {
    auto* const passes = static_cast<Passes*>(c10::ThreadLocalDebugInfo::get(kind()));
    if (passes == nullptr || !BackwardWatch::is_in_outermost()) return nullptr;
    const std::lock_guard lock(passes->mutex);
    const int graph = torch::autograd::get_current_graph_task_id();
    if (graph == std::exchange(passes->last_graph, graph)) return nullptr;
    if (passes->count++ == 0) passes->began = device_now(passes->device);
    torch::autograd::Engine::get_default_engine().queue_callback([passes] { passes->ended = device_now(passes->device); });
    return nullptr;
  }

  std::shared_ptr<Passes> passes_;
  c10::DebugInfoGuard debug_info_;
  at::CallbackHandle callback_;
};

// Records when a module first awaits each parameter in a forward pass (firkin/ddp/await_parameters.h), for as long as it
// lives.
class ForwardRecorder {
 public:
  ForwardRecorder(torch::nn::Module& module, const std::vector<NamedTensor>& parameters, c10::Device device)
      : parameter_count_(parameters.size()), device_(device), modules_(module, parameters, [this](const torch::nn::Module& awaiting) {
          if (modules_.record_await(awaiting, std::ssize(times_))) times_.push_back(device_now(device_));
        }) {}

  // Call it when the forward pass begins; call the methods below when it has ended.
  void begin() { times_.push_back(device_now(device_)); }

  // Whether any module has awaited.
  bool has_awaiting() const { return times_.size() > 1; }
  // Per parameter, in seconds; 0 for one that no module awaits, which must be there before forward begins.
  std::vector<double> needed_s() {
    modules_.learn();
    std::vector<double> needed;
    for (size_t i = 0; i < parameter_count_; ++i) {
      needed.push_back(seconds_between(times_[0], times_[static_cast<size_t>(modules_.first_use(i))]));
    }
    return needed;
  }

 private:
  size_t parameter_count_;
  c10::Device device_;
  std::vector<DeviceTime> times_;  // when forward began, and when modules awaited for the first time
  AwaitingModules modules_;        // last: awaits are reported until it is destroyed
};

constexpr int kWarmupSteps = 3;

// Seconds of a step on this rank.
struct ProfiledStep {
  int backward_passes = 1;
  double forward_s = 0;  // includes reading the batch and the loss
  double backward_s = 0;
  double update_s = 0;
  std::vector<double> ready_s;   // per parameter, from when backward began; empty if not observed
  std::vector<double> needed_s;  // per parameter, from when forward began; empty if not observed

  double whole_s() const { return forward_s + backward_s + update_s; }
};

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

// Times a step that is one function, of which all that comes before backward counts as forward. Returns when its backward
// began.
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

// Steps the workload, optimiser included, without communicating gradients, with a barrier before backward. Collective.
// ready, forward: what observes the step, or null.
ProfiledStep profiled_step(const ProcessGroup& group, Workload& workload, int64_t step, const ReadyRecorder* ready = nullptr,
                           ForwardRecorder* forward = nullptr) {
  ProfiledStep times;
  forget_gradients(workload);
  synchronize(device_of(workload));
  if (forward != nullptr) forward->begin();
  const DeviceTime started = workload.whole_step ? step_as_a_whole(group, workload, times) : step_in_phases(group, workload, step, times);
  if (ready != nullptr) {
    for (const DeviceTime& time : ready->ready()) times.ready_s.push_back(seconds_between(started, time));
  }
  if (forward != nullptr) times.needed_s = forward->needed_s();
  return times;
}

// Why a step cannot be profiled; none if it can.
std::optional<std::string> problem_of(const std::vector<NamedTensor>& parameters, const ProfiledStep& step) {
  if (step.backward_passes == 0) return "the training step ran no backward pass on the thread that called it; expected one";
  if (step.backward_passes > 1) return fmt::format("the training step ran {} backward passes; expected one", step.backward_passes);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (step.ready_s[i] > 0) continue;
    return fmt::format("the training step gave {} no gradient; expected one for every parameter that requires a gradient",
                       parameters[i].name);
  }
  return std::nullopt;
}

// A profiled step as one list that ranks can exchange: the step and its phases, the ready times, and what else was
// observed.
enum StepColumn : size_t { kStep, kForward, kBackward, kUpdate, kStepColumns };
std::vector<double> flattened(const ProfiledStep& step, const std::vector<double>& more) {
  std::vector<double> values = {step.whole_s(), step.forward_s, step.backward_s, step.update_s};
  values.insert(values.end(), step.ready_s.begin(), step.ready_s.end());
  values.insert(values.end(), more.begin(), more.end());
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

}  // namespace

MeasuredProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options) {
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  // On a device DataParallel copies a whole bucket at once; a copy of each gradient would take longer than the rest of
  // what hooks do.
  const ReadyWhen when = device_of(workload).is_cpu() ? ReadyWhen::kInBucket : ReadyWhen::kAccumulated;
  int64_t step = 0;
  for (int i = 0; i < kWarmupSteps; ++i) profiled_step(group, workload, step++);
  std::vector<double> bare;
  std::vector<double> hooked;
  std::vector<std::vector<double>> rows;  // [step]: flattened(), with needed times
  bool has_awaiting = false;
  for (int i = 0; i < options.steps; ++i) {
    bare.push_back(max_over_ranks(group, {profiled_step(group, workload, step++).backward_s})[0]);
    const ReadyRecorder ready(parameters, when);
    ForwardRecorder forward(*workload.module, parameters, device_of(workload));
    const ProfiledStep times = profiled_step(group, workload, step++, &ready, &forward);
    if (i == 0) {
      const std::optional<RankProblem> problem = first_problem(group, problem_of(parameters, times));
      if (problem) throw InputError(fmt::format("rank {}: {}", problem->rank, problem->text));
    }
    rows.push_back(max_over_ranks(group, flattened(times, times.needed_s)));
    hooked.push_back(rows.back()[kBackward]);
    has_awaiting = forward.has_awaiting();
    if (options.on_progress) options.on_progress(fmt::format("backward {}", i + 1));
    if (options.is_enough && options.is_enough(i + 1)) break;
  }
  forget_gradients(workload);

  const std::vector<double> medians = column_medians(rows);
  const auto ready = medians.begin() + kStepColumns;
  const auto needed = ready + static_cast<std::ptrdiff_t>(parameters.size());
  MeasuredProfile result;
  result.ready_order = order_of_times({ready, needed});
  result.tensors = profile_in_order(parameters, result.ready_order, {ready, needed}, medians[kBackward]);
  if (has_awaiting) add_forward(result.ready_order, {needed, medians.end()}, medians[kForward], medians[kUpdate], result.tensors);
  add_bare_backward(hooked, bare, result);
  return result;
}

namespace {

// The end of one layer of a forward pass; the first mark, without a name, is the start.
struct Mark {
  std::string layer;
  DeviceTime time;
};

// Layers by name, and the parameters of each.
struct LayerMap {
  std::vector<LayerRow> layers;
  std::vector<size_t> layer_of_parameter;
  size_t with_parameters = 0;  // how many layers, the first ones, have some

  explicit LayerMap(const std::vector<NamedTensor>& parameters) {
    for (const NamedTensor& parameter : parameters) {
      const size_t layer = index_of(layer_of(parameter.name));
      layers[layer].parameters += parameter.tensor.numel();
      layer_of_parameter.push_back(layer);
    }
    with_parameters = layers.size();
  }

  // Adds the layer if it is new.
  size_t index_of(const std::string& name) {
    const auto found = std::ranges::find(layers, name, &LayerRow::name);
    if (found != layers.end()) return static_cast<size_t>(found - layers.begin());
    layers.push_back({.name = name});
    return layers.size() - 1;
  }
};

// Per layer with parameters, the time from when the layer before it was complete (or backward began) until it is
// complete itself.
std::vector<double> backward_by_layer(const std::vector<double>& ready_s, const LayerMap& map) {
  std::vector<double> complete(map.with_parameters, 0.0);
  for (size_t i = 0; i < ready_s.size(); ++i) {
    double& layer = complete[map.layer_of_parameter[i]];
    layer = std::max(layer, ready_s[i]);
  }
  std::vector<double> spent(complete.size());
  double before = 0;
  for (const int64_t layer : order_of_times(complete)) {
    const auto index = static_cast<size_t>(layer);
    spent[index] = complete[index] - before;
    before = complete[index];
  }
  return spent;
}

// The rows of watched steps, flattened() with the times of layers, as columns of a profile.
LayerProfile profile_of(const std::vector<std::vector<double>>& rows, const std::vector<std::string>& marks,
                        const std::vector<NamedTensor>& parameters, LayerMap map) {
  LayerProfile profile;
  LayersSection& times = profile.times;
  std::vector<size_t> marked;
  for (const std::string& mark : marks) marked.push_back(map.index_of(mark));
  const size_t layers = kStepColumns + parameters.size();
  for (const std::vector<double>& row : rows) {
    times.watched_step_s.push_back(row[kStep]);
    times.forward_s.push_back(row[kForward]);
    times.backward_s.push_back(row[kBackward]);
    times.optimizer_s.push_back(row[kUpdate]);
    for (size_t i = 0; i < map.with_parameters; ++i) map.layers[i].backward_s.push_back(row[layers + i]);
    for (size_t i = 0; i < marked.size(); ++i) map.layers[marked[i]].forward_s.push_back(row[layers + map.with_parameters + i]);
  }
  const std::vector<double> medians = column_medians(rows);
  const std::vector<double> ready_s(medians.begin() + kStepColumns, medians.begin() + static_cast<std::ptrdiff_t>(layers));
  profile.tensors = profile_in_order(parameters, order_of_times(ready_s), ready_s, medians[kBackward]);
  times.layers = std::move(map.layers);
  return profile;
}

}  // namespace

std::string layer_of(const std::string& parameter) {
  const auto is_number = [](const std::string& part) { return !part.empty() && part.find_first_not_of("0123456789") == std::string::npos; };
  for (size_t begin = 0; begin < parameter.size();) {
    const size_t end = std::min(parameter.find('.', begin), parameter.size());
    if (is_number(parameter.substr(begin, end - begin))) return parameter.substr(0, end);
    begin = end + 1;
  }
  return parameter.substr(0, parameter.find('.'));
}

LayerProfile measure_layers(const ProcessGroup& group, Workload& workload, const LayerBenchOptions& options) {
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  const LayerMap map(parameters);
  std::vector<std::string> marked;        // layers, in the order of forward
  std::vector<std::vector<double>> rows;  // [step]: flattened(), with the times of layers
  std::vector<double> bare_s;
  int64_t step = 0;
  const auto run_bare = [&] { return max_over_ranks(group, {profiled_step(group, workload, step++).whole_s()})[0]; };
  const auto run_watched = [&] {
    std::vector<Mark> marks;
    const auto observe = [&](const std::string& layer) { marks.push_back({layer, device_now(device_of(workload))}); };
    const ReadyRecorder recorder(parameters, ReadyWhen::kAccumulated);
    if (options.observe_forward) options.observe_forward(observe);
    const ProfiledStep times = profiled_step(group, workload, step++, &recorder);
    if (options.observe_forward) options.observe_forward({});
    marked.clear();
    std::vector<double> by_layer = backward_by_layer(times.ready_s, map);
    for (size_t i = 1; i < marks.size(); ++i) {
      marked.push_back(marks[i].layer);
      by_layer.push_back(seconds_between(marks[i - 1].time, marks[i].time));
    }
    rows.push_back(max_over_ranks(group, flattened(times, by_layer)));
  };
  for (int i = 0; i < kWarmupSteps; ++i) run_bare();
  std::mt19937_64 random(options.seed);
  for (int i = 0; i < options.steps; ++i) {
    const bool watched_first = random() % 2 == 0;
    if (watched_first) run_watched();
    bare_s.push_back(run_bare());
    if (!watched_first) run_watched();
    if (options.on_progress) options.on_progress(fmt::format("pair {}", i + 1));
  }
  workload.optimizer->zero_grad();
  LayerProfile profile = profile_of(rows, marked, parameters, map);
  profile.times.bare_step_s = std::move(bare_s);
  profile.watched_to_bare = paired_ratio(profile.times.watched_step_s, profile.times.bare_step_s);
  return profile;
}

}  // namespace firkin
