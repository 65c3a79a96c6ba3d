#include "first_use.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "firkin/base/error.h"

namespace firkin {

std::vector<double> ForwardTimes::seconds() const {
  std::vector<double> result;
  for (size_t i = 0; i < pauses.size(); ++i) {
    result.push_back(i == 0 ? 0 : result.back() + seconds_between(pauses[i - 1].to, pauses[i].from));
  }
  return result;
}

void FirstUse::renewed() {
  const StepSetup& setup = synchronizer_.setup();
  listening_.reset();
  modules_.emplace(*setup.module, setup.parameters);
  pauses_.assign(1, {});
  is_late_.assign(setup.parameters.size(), false);
  listening_.emplace(*setup.module, [this](const torch::nn::Module& module) { module_awaits(module); });
}

// The forward that led to this gradient must have waited for the parameter, or it has used an old value.
void FirstUse::gradient(size_t parameter) {
  if (const std::exception_ptr problem = objection()) std::rethrow_exception(problem);
  if (is_late_[parameter]) modules_->check_awaited(parameter, synchronizer_.setup().parameters[parameter].name);
}

std::exception_ptr FirstUse::objection() const {
  return steps_are_lost_ ? std::make_exception_ptr(RuntimeError(std::string("DataParallel: ") + unused_)) : nullptr;
}

void FirstUse::dropped() {
  steps_are_lost_ = false;  // that step has failed, and the next one starts clean
  is_late_.assign(is_late_.size(), false);
  modules_->begin_forward();
}

bool FirstUse::may_be_late(int64_t bucket) const {
  return std::ranges::all_of(synchronizer_.transport().parameters_in(bucket),
                             [this](int64_t parameter) { return modules_->is_awaited(static_cast<size_t>(parameter)); });
}

std::unique_lock<std::recursive_mutex> FirstUse::enter_after_step() const {
  std::unique_lock held = synchronizer_.enter();
  if (!synchronizer_.is_step_open()) return held;
  throw RuntimeError(
      "DataParallel: the optimiser stepped before gradients were averaged; expected finish_gradient_synchronization() first");
}

void FirstUse::begin_forward() {
  modules_->begin_forward();
  last_forward_wait_s_ = std::exchange(forward_wait_s_, 0);
  const DeviceTime now = device_now(clock_);
  pauses_.assign(1, {now, now});
}

ForwardTimes FirstUse::end_forward() {
  const DeviceTime now = device_now(clock_);
  ForwardTimes forward{.pauses = std::move(pauses_), .first_use = {}};
  const auto end = static_cast<int64_t>(forward.pauses.size());
  forward.pauses.push_back({now, now});
  for (size_t i = 0; i < is_late_.size(); ++i) forward.first_use.push_back(std::min(modules_->first_use(i), end));
  pauses_.assign(1, {now, now});
  return forward;
}

std::vector<int64_t> FirstUse::first_use_of_buckets(const std::vector<int64_t>& of_parameters) const {
  const BucketTransport& transport = synchronizer_.transport();
  std::vector<int64_t> first_use(transport.communication().plan.buckets.size(), std::numeric_limits<int64_t>::max());
  for (size_t bucket = 0; bucket < first_use.size(); ++bucket) {
    for (const int64_t parameter : transport.parameters_in(static_cast<int64_t>(bucket))) {
      first_use[bucket] = std::min(first_use[bucket], of_parameters[static_cast<size_t>(parameter)]);
    }
  }
  return first_use;
}

void FirstUse::module_awaits(const torch::nn::Module& module) {
  const auto held = synchronizer_.lock();
  const bool is_first = modules_->note(module, std::ssize(pauses_));
  synchronizer_.transport().settled().follow();
  if (anything_late_) synchronizer_.throw_if_lost();
  if (is_first) receive_in_forward(modules_->parameters_of(module));  // later in a forward it has them
}

void FirstUse::receive_in_forward(const std::vector<size_t>& parameters) {
  const DeviceTime from = device_now(clock_);
  DeviceTime to = from;
  if (anything_late_) {
    synchronizer_.or_lose_group([&] { receive_those(parameters); });
    to = device_now(clock_);
    forward_wait_s_ += std::chrono::duration<double>(to.host - from.host).count();
  }
  pauses_.push_back({from, to});
}

// The reader need not be the module that learn() saw awaiting them, and does not become it.
void FirstUse::receive_parameters(const torch::nn::Module& part) {
  if (!anything_late_) return;
  const auto held = synchronizer_.lock();
  synchronizer_.throw_if_lost();
  synchronizer_.transport().settled().follow();
  receive_in_forward(modules_->indices_in(part));
}

void FirstUse::drain() {
  const auto held = synchronizer_.enter();
  if (synchronizer_.is_step_open()) return;  // what is in flight is this step's
  synchronizer_.transport().settled().follow();
  synchronizer_.or_lose_group([&] { receive_rest(); });
}

void FirstUse::receive_rest() {
  receive_all();
  is_late_.assign(is_late_.size(), false);  // nothing is left that could be used too early
}

void FirstUse::add_to(DataParallelStats& stats) const {
  const auto held = synchronizer_.lock();
  stats.forward_wait_s = last_forward_wait_s_;
  const GradientBuckets* buckets = synchronizer_.transport().buckets();
  for (int64_t bucket = 0; buckets != nullptr && bucket < buckets->bucket_count(); ++bucket) {
    if (may_be_late(bucket)) stats.awaited_bytes += buckets->gradient_bytes(bucket);
  }
}

}  // namespace firkin
