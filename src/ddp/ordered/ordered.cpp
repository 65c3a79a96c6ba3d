#include "ordered.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <limits>
#include <numeric>
#include <typeinfo>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/plan/ordered_plan.h"
#include "firkin/stats/estimates.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

namespace firkin {
namespace {

constexpr const char* kUnusedGradients =
    "gradients of the last backward were still in flight and nobody had used them: a second backward came first, or a plain "
    "optimizer.step(), which misses them; expected OverlappedOptimizer::step() after each synchronising backward (accumulate under "
    "no_sync()), or drain() before gradients are read";

// A step's times in the form in which ranks exchange them, to take the largest over the ranks: ready times and first
// uses by bucket, the lengths of backward and forward, and the seconds that the link was busy. The last is negative,
// because its smallest value counts.
std::vector<double> row_of(const TimedStep& step) {
  const auto since_began = [&step](const DeviceTime& time) { return seconds_between(step.began, time); };
  std::vector<double> row(step.buckets.size());
  double busy_s = 0;
  double last_end_s = 0;
  for (const auto& [bucket, times] : step.buckets) {
    row[static_cast<size_t>(bucket)] = since_began(times.ready);
    const double end_s = since_began(times.ended);
    busy_s += std::max(0.0, end_s - std::max(since_began(times.launched), last_end_s));
    last_end_s = std::max(last_end_s, end_s);
  }
  const std::vector<double> forward_s = step.forward.seconds();
  for (const int64_t pause : step.first_use) row.push_back(forward_s[static_cast<size_t>(pause)]);
  row.insert(row.end(), {since_began(step.backward_ended), forward_s.back(), -busy_s});
  return row;
}

constexpr int64_t kMostTimed = 8;  // steps that a choice uses

// Whether ranks choose a launch order after so many steps with these buckets: 2, 4, 8, ... 64, and every 64 from then
// on. Ready times change most in the beginning.
bool is_choice_due(int64_t steps) {
  constexpr int64_t kLongest = 64;
  return steps > 1 && (steps % kLongest == 0 || (steps < kLongest && (steps & (steps - 1)) == 0));
}

// Whether a later choice uses the step that follows `steps` others.
bool is_kept(int64_t steps) {
  for (int64_t later = 2; later <= kMostTimed + 1; ++later) {
    if (is_choice_due(steps + later)) return true;
  }
  return false;
}

// Chooses a launch order from what these steps have shown, the same on every rank. Every rank must give as many steps.
// On a device, waits for the end of the forward behind the last one. Collective.
std::vector<int64_t> launch_order_of(const std::vector<TimedStep>& steps, const GradientPipe& pipe, const StepSetup& setup, int root) {
  std::vector<double> all;
  for (const TimedStep& step : steps) {
    const std::vector<double> row = row_of(step);
    all.insert(all.end(), row.begin(), row.end());
  }
  const std::vector<double> slowest = max_over_ranks(setup.control, all);
  const size_t buckets = steps.back().buckets.size();
  const size_t width = 2 * buckets + 3;
  std::vector<std::vector<double>> rows;
  for (size_t at = 0; at < slowest.size(); at += width)
    rows.emplace_back(slowest.begin() + static_cast<std::ptrdiff_t>(at), slowest.begin() + static_cast<std::ptrdiff_t>(at + width));
  const std::vector<double> usual = column_medians(rows);
  // The least over the ranks: a rank that launches first also counts the time for which its collective waits for the
  // others, which is no property of the link.
  double busy_s = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& row : rows) busy_s = std::min(busy_s, -row[width - 1]);
  std::vector<double> bytes_on_wire(buckets);
  for (size_t i = 0; i < buckets; ++i) bytes_on_wire[i] = static_cast<double>(pipe.buckets()->wire(static_cast<int64_t>(i)).nbytes());
  const double bytes = std::accumulate(bytes_on_wire.begin(), bytes_on_wire.end(), 0.0);
  ObservedTraining training;
  for (size_t i = 0; i < buckets; ++i) {
    training.transfer_s.push_back(bytes == 0 ? 0 : busy_s * bytes_on_wire[i] / bytes);
    training.needed_s.push_back(usual[buckets + i]);
  }
  training.forward_s = usual[width - 2];
  for (const std::vector<double>& row : rows) {
    training.steps.push_back({.ready_s = {row.begin(), row.begin() + static_cast<std::ptrdiff_t>(buckets)}, .backward_s = row[width - 3]});
  }
  const std::optional<double> slack = setup.options.launch_slack;
  const LaunchOrder chosen = slack ? launch_orders(training, {*slack}).front() : robust_launch_order(training);
  return list_of_rank(setup.control, chosen.order, root);  // machines may round differently
}

std::optional<c10::Stream> timing_stream(const std::vector<NamedTensor>& parameters) {
  const c10::Device device = parameters[0].tensor.device();
  const bool is_only = std::ranges::all_of(parameters, [device](const NamedTensor& each) { return each.tensor.device() == device; });
  if (device.is_cpu() || !is_only) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

// Throws InputError for L-BFGS. Warns once of a class that LibTorch does not have, which may not work in parts. (Python
// warns of its optimisers itself.)
void check_steps_by_parts(const torch::optim::Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::LBFGS)) {
    throw InputError(
        "the strategy ordered does not work with L-BFGS, which needs all gradients at once; expected another strategy or optimiser");
  }
  const std::array known = {&typeid(torch::optim::SGD), &typeid(torch::optim::Adam), &typeid(torch::optim::AdamW),
                            &typeid(torch::optim::RMSprop), &typeid(torch::optim::Adagrad)};
  if (std::ranges::any_of(known, [&type](const std::type_info* each) { return *each == type; })) return;
  if (dynamic_cast<const ForeignOptimizer*>(&optimizer) != nullptr) return;
  TORCH_WARN_ONCE(
      "OverlappedOptimizer: steps of ", c10::demangle(type.name()),
      " must take each parameter by itself: no norm or estimate over all gradients, no random numbers. Otherwise parameters are "
      "wrong, and may differ between ranks");
}

}  // namespace

void DeferredSteps::run(c10::function_ref<void()> set_gradients) {
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden;  // parameters and their gradients
  const auto restore = c10::make_scope_exit([&hidden] {
    for (auto& [parameter, gradient] : hidden) parameter.mutable_grad() = std::move(gradient);
  });
  for (const StepInParts& step : steps_) {
    for (const auto& group : step.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) hidden.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
      }
    }
  }
  set_gradients();
  // The forward that calls this may run under autocast or in inference mode, under which a program does not step.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::optional<c10::InferenceMode> no_inference_mode;
  if (c10::InferenceMode::is_enabled()) no_inference_mode.emplace(false);
  for (StepInParts& step : steps_) step.run();
  for (const StepInParts& step : steps_) {
    for (const auto& group : step.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) parameter.mutable_grad().reset();
    }
  }
}

Ordered::Ordered(StepProtocol& protocol, const StepSetup& setup, GradientPipe& pipe) : ForwardOverlap(protocol, setup, kUnusedGradients) {
  Ordered::renewed(pipe);
}

Ordered::~Ordered() {
  modules_.reset();
  if (anything_late_) {
    TORCH_WARN("DataParallel: destroyed with gradients of the last step in flight; ", kUnusedGradients);
  }
}

void Ordered::renewed(GradientPipe& pipe) {
  ForwardOverlap::renewed(pipe);
  traces_.assign(is_late_.size(), {});
  timing_ = timing_stream(setup_.parameters);
  forget_buckets();
}

void Ordered::forget_buckets() {
  timed_.clear();
  steps_ = 0;
  next_launch_order_.clear();
  is_forward_observed_ = false;
}

bool Ordered::may_be_late(int64_t bucket) const {
  return !pipe().communication().plan.launch_order.empty() && ForwardOverlap::may_be_late(bucket);
}

void Ordered::begin() {
  is_last_step_unused_ = std::exchange(are_unclaimed_, false);
  receive_all();
  observe();
  if (!next_launch_order_.empty()) pipe().set_launch_order(std::exchange(next_launch_order_, {}));
  std::vector<bool> late;
  for (size_t i = 0; i < pipe().communication().plan.buckets.size(); ++i) late.push_back(may_be_late(static_cast<int64_t>(i)));
  pipe().let_arrive_late(std::move(late));
  const bool is_timed = timing_ && chooses_order() && is_kept(steps_);
  clock_ = is_timed ? timing_->device() : c10::kCPU;
  pipe().time_on(is_timed ? timing_ : std::nullopt);
}

bool Ordered::chooses_order() const {
  const DataParallelOptions& options = setup_.options;
  return !takes_plan(options) || options.plan->launch_order.empty();
}

// Records the times of the last step, now that all its buckets have arrived and the forward behind it is over.
void Ordered::observe() {
  if (!std::exchange(is_forward_observed_, false)) return;
  last_forward_ = end_forward();
  TimedStep step{.buckets = {},
                 .began = pipe().started_at(),
                 .backward_ended = pipe().backward_ended(),
                 .forward = last_forward_,
                 .first_use = first_use_of_buckets(last_forward_.first_use)};
  for (size_t i = 0; i < pipe().finished_stats().size(); ++i) {
    step.buckets.emplace_back(pipe().bucket_at(i), pipe().times_of(pipe().bucket_at(i)));
  }
  timed_.push_back(std::move(step));
  if (std::ssize(timed_) > kMostTimed) timed_.erase(timed_.begin());
}

void Ordered::received(const StepAgreement& agreement, bool is_first) {
  if (is_first) {
    modules_->learn();
  } else {
    is_forward_observed_ = true;
    // The next step begins with the new order: nothing of this step is in flight then.
    if (is_choice_due(++steps_) && chooses_order()) {
      next_launch_order_ = launch_order_of(timed_, pipe(), setup_, agreement.first_with_data());
    }
  }
  is_late_.assign(is_late_.size(), false);
  deferred_.clear();
  for (const int64_t bucket : pipe().not_received()) {
    for (const int64_t parameter : pipe().parameters_in(bucket)) is_late_[static_cast<size_t>(parameter)] = true;
    anything_late_ = true;
    are_unclaimed_ = true;
  }
  for (size_t i = 0; anything_late_ && i < traces_.size(); ++i) {
    const at::Tensor& gradient = tensor_of(i).grad();
    traces_[i] = gradient.defined() ? trace_of(gradient) : Trace{};
  }
  begin_forward();
}

// Throws RuntimeError if gradients were changed since backward, for example clipped by a norm without those in flight.
void Ordered::check_unchanged() const {
  for (size_t i = 0; i < traces_.size(); ++i) {
    const at::Tensor& gradient = tensor_of(i).grad();
    if (is_late_[i] || !gradient.defined() || trace_of(gradient) == traces_[i]) continue;
    throw RuntimeError(
        fmt::format("OverlappedOptimizer: the gradient of {} was changed (clipped?) while others were in flight; expected "
                    "clip_gradients(), or drain() before gradients are changed",
                    setup_.parameters[i].name));
  }
}

void Ordered::step(torch::optim::Optimizer& optimizer) {
  const auto held = enter_after_step();
  if (anything_late_) {
    check_steps_by_parts(optimizer);
    if (deferred_.empty()) check_unchanged();
  }
  are_unclaimed_ = false;
  is_stepping_ = true;
  const auto stepped = c10::make_scope_exit([this] { is_stepping_ = false; });
  if (!anything_late_) {
    optimizer.step();
    return;
  }
  StepInParts step(optimizer);
  step.run();
  deferred_.add(std::move(step));
}

void Ordered::receive_rest() {
  are_unclaimed_ = false;
  ForwardOverlap::receive_rest();
}

// Receives the buckets of these parameters, in launch order.
void Ordered::receive_those(const std::vector<size_t>& parameters) {
  std::vector<int64_t> buckets = pipe().not_received();
  std::erase_if(buckets, [&](int64_t bucket) {
    return std::ranges::none_of(parameters,
                                [&](size_t parameter) { return pipe().buckets()->bucket_of(pipe().position_of(parameter)) == bucket; });
  });
  if (!buckets.empty()) receive_in_turn(buckets);
}

// Receives these buckets one after another. Before each it receives all that have arrived, and steps the optimiser once
// on all of them: in Python that costs as much as on one.
void Ordered::receive_in_turn(const std::vector<int64_t>& buckets) {
  if (is_stepping_) return;
  for (const int64_t bucket : buckets) {
    while (!pipe().is_received(bucket)) {
      std::vector<int64_t> arrived = pipe().not_received();
      std::erase_if(arrived, [&](int64_t each) { return !pipe().has_arrived(each); });
      if (arrived.empty()) arrived = {bucket};
      receive_late(arrived);
    }
  }
  if (!pipe().not_received().empty()) return;
  anything_late_ = false;
  deferred_.clear();
}

void Ordered::receive_all() {
  if (anything_late_) receive_in_turn(pipe().not_received());
}

void Ordered::receive_late(const std::vector<int64_t>& buckets) {
  std::vector<size_t> complete;
  for (const int64_t bucket : buckets) {
    RECORD_USER_SCOPE("forward waits");
    const std::vector<size_t> more = pipe().receive_bucket(bucket, [this] {
      return fmt::format("{} of step {}, in the forward after it", pipe().first_pending(), protocol_.steps_finished() - 1);
    });
    complete.insert(complete.end(), more.begin(), more.end());
  }
  pipe().stream_mark().set();
  if (is_last_step_unused_ || complete.empty()) return;
  if (deferred_.empty()) return pipe().adopt(complete);
  RECORD_USER_SCOPE("optimiser");
  is_stepping_ = true;
  const auto stepped = c10::make_scope_exit([this] { is_stepping_ = false; });
  deferred_.run([&] { pipe().adopt(complete); });
  pipe().stream_mark().set();
}

OverlappedOptimizer::OverlappedOptimizer(DataParallel& ddp, torch::optim::Optimizer& optimizer) : ddp_(&ddp), optimizer_(&optimizer) {
  ddp_->audit_optimizer(optimizer);
}

OverlappedOptimizer::~OverlappedOptimizer() {
  try {
    ddp_->forget_audited(*optimizer_);
    drain();
  } catch (const std::exception& error) {
    TORCH_WARN("OverlappedOptimizer: cannot complete the last step: ", error.what());
  }
}

void OverlappedOptimizer::step() {
  ddp_->step(*optimizer_);
}

void OverlappedOptimizer::zero_grad(bool set_to_none) {
  drain();
  optimizer_->zero_grad(set_to_none);
}

torch::optim::Optimizer& OverlappedOptimizer::optimizer() {
  drain();
  return *optimizer_;
}

double OverlappedOptimizer::clip_gradients(double max_norm) {
  const auto started = std::chrono::steady_clock::now();
  drain();
  const double waited_s = seconds_since(started);
  if (waited_s > 0.001) {
    TORCH_WARN_ONCE("clip_gradients() waits for all gradients (here for ", format_seconds(waited_s),
                    "), so the strategy ordered overlaps nothing with the next forward");
  }
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_->param_groups()) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

}  // namespace firkin
