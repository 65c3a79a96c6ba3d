#include "forward_overlap.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// Transforms of torch.func (jvp, jacrev) may surround a forward. What is received within the forward, and stepped by an
// optimiser, is no part of the function that they transform: they are off meanwhile.
constexpr c10::DispatchKeySet kTransforms({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                           c10::DispatchKey::FuncTorchDynamicLayerBackMode});

}  // namespace

std::vector<double> ForwardTimes::seconds() const {
  std::vector<double> result;
  for (size_t i = 0; i < pauses.size(); ++i) {
    result.push_back(i == 0 ? 0 : result.back() + seconds_between(pauses[i - 1].to, pauses[i].from));
  }
  return result;
}

void ForwardOverlap::renewed(GradientPipe& pipe) {
  pipe_ = &pipe;
  modules_.emplace(*setup_.module, setup_.parameters, [this](const torch::nn::Module& module) { module_awaits(module); });
  pauses_.assign(1, {});
  is_late_.assign(setup_.parameters.size(), false);
}

// A forward that has led to a gradient has awaited the parameter first, or it has used an old value.
void ForwardOverlap::check(std::optional<size_t> gradient) {
  if (is_last_step_unused_) throw RuntimeError(std::string("DataParallel: ") + unused_);
  if (gradient && is_late_[*gradient]) modules_->check_awaited(*gradient, setup_.parameters[*gradient].name);
}

void ForwardOverlap::ended(const StepAgreement& /*agreement*/, bool is_good) {
  if (is_good) return;
  is_last_step_unused_ = false;  // that step has failed, and the next one starts clean
  is_late_.assign(is_late_.size(), false);
  modules_->begin_forward();
}

bool ForwardOverlap::may_be_late(int64_t bucket) const {
  return std::ranges::all_of(pipe().parameters_in(bucket),
                             [this](int64_t parameter) { return modules_->is_awaited(static_cast<size_t>(parameter)); });
}

std::unique_lock<std::recursive_mutex> ForwardOverlap::enter_after_step() const {
  std::unique_lock held = protocol_.enter();
  if (!protocol_.is_step_open()) return held;
  throw RuntimeError(
      "DataParallel: the optimiser stepped before gradients were averaged; expected finish_gradient_synchronization() first");
}

void ForwardOverlap::begin_forward() {
  modules_->begin_forward();
  last_forward_wait_s_ = std::exchange(forward_wait_s_, 0);
  const DeviceTime now = device_now(clock_);
  pauses_.assign(1, {now, now});
}

ForwardTimes ForwardOverlap::end_forward() {
  const DeviceTime now = device_now(clock_);
  ForwardTimes forward{.pauses = std::move(pauses_), .first_use = {}};
  const auto end = static_cast<int64_t>(forward.pauses.size());
  forward.pauses.push_back({now, now});
  for (size_t i = 0; i < is_late_.size(); ++i) forward.first_use.push_back(std::min(modules_->first_use(i), end));
  pauses_.assign(1, {now, now});
  return forward;
}

std::vector<int64_t> ForwardOverlap::first_use_of_buckets(const std::vector<int64_t>& of_parameters) const {
  std::vector<int64_t> first_use(pipe().communication().plan.buckets.size(), std::numeric_limits<int64_t>::max());
  for (size_t bucket = 0; bucket < first_use.size(); ++bucket) {
    for (const int64_t parameter : pipe().parameters_in(static_cast<int64_t>(bucket))) {
      first_use[bucket] = std::min(first_use[bucket], of_parameters[static_cast<size_t>(parameter)]);
    }
  }
  return first_use;
}

void ForwardOverlap::module_awaits(const torch::nn::Module& module) {
  const auto held = protocol_.lock();
  const bool is_first = modules_->record_await(module, std::ssize(pauses_));
  pipe().stream_mark().follow();
  if (anything_late_) protocol_.throw_if_lost();
  if (is_first) receive_in_forward(modules_->parameters_of(module));  // at later awaits in this forward the module has them
}

void ForwardOverlap::receive_in_forward(const std::vector<size_t>& parameters) {
  const DeviceTime from = device_now(clock_);
  DeviceTime to = from;
  if (anything_late_) {
    const c10::impl::ExcludeDispatchKeyGuard no_transforms(kTransforms);
    protocol_.or_lose_group([&] { receive_those(parameters); });
    to = device_now(clock_);
    forward_wait_s_ += std::chrono::duration<double>(to.host - from.host).count();
  }
  pauses_.push_back({from, to});
}

// The caller need not be the module that awaits these parameters, and what it receives counts as received in this
// forward.
void ForwardOverlap::receive_parameters(const torch::nn::Module& part) {
  const auto held = protocol_.lock();
  const std::vector<size_t> parameters = modules_->indices_in(part);
  modules_->record_received(parameters);
  if (!anything_late_) return;
  protocol_.throw_if_lost();
  pipe().stream_mark().follow();
  receive_in_forward(parameters);
}

void ForwardOverlap::drain() {
  const auto held = protocol_.enter();
  if (protocol_.is_step_open()) return;  // what is in flight is this step's
  pipe().stream_mark().follow();
  const c10::impl::ExcludeDispatchKeyGuard no_transforms(kTransforms);
  protocol_.or_lose_group([&] { receive_rest(); });
}

void ForwardOverlap::receive_rest() {
  receive_all();
  is_late_.assign(is_late_.size(), false);  // a forward cannot use these too early any more
}

void ForwardOverlap::add_to(DataParallelStats& stats) const {
  const auto held = protocol_.lock();
  stats.forward_wait_s = last_forward_wait_s_;
  const GradientBuckets* buckets = pipe().buckets();
  for (int64_t bucket = 0; buckets != nullptr && bucket < buckets->bucket_count(); ++bucket) {
    if (may_be_late(bucket)) stats.awaited_bytes += buckets->gradient_bytes(bucket);
  }
}

}  // namespace firkin
