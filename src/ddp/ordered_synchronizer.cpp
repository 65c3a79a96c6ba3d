#include "ordered_synchronizer.h"

#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/plan/launch_order.h"

namespace firkin {
namespace {

constexpr const char* kUnusedGradients =
    "the gradients of the last step were neither used nor awaited: under the strategy ordered, optimizer.step() alone does not see them; "
    "expected OverlappedOptimizer::step(), or drain() before anything else that reads gradients";

}  // namespace

OrderedSynchronizer::OrderedSynchronizer(torch::nn::Module& module, SynchronizerSetup setup_in)
    : BucketSynchronizer(std::move(setup_in)), modules_(module, setup().parameters), is_late_(setup().parameters.size(), false) {
  listening_.emplace(module, *this);
}

OrderedSynchronizer::~OrderedSynchronizer() {
  listening_.reset();
  if (anything_late_) TORCH_WARN("DataParallel: destroyed while gradients of the last step were on their way; ", kUnusedGradients);
}

// Every parameter in it is awaited by a module, in every forward.
bool OrderedSynchronizer::may_arrive_later(int64_t bucket) const {
  if (!has_launch_order_) return false;
  const Bucket& tensors = plan().buckets[static_cast<size_t>(bucket)];
  for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
    if (!modules_.is_awaited(static_cast<size_t>(communication().order[static_cast<size_t>(position)]))) return false;
  }
  return true;
}

void OrderedSynchronizer::begin_gradients(int64_t step) {
  steps_are_lost_ = std::exchange(are_unclaimed_, false);
  receive_all_late();
  BucketSynchronizer::begin_gradients(step);
}

void OrderedSynchronizer::gradient_ready(size_t parameter) {
  check_awaited(parameter);
  if (steps_are_lost_) throw RuntimeError(std::string("DataParallel: ") + kUnusedGradients);
  BucketSynchronizer::gradient_ready(parameter);
}

std::exception_ptr OrderedSynchronizer::send_gradients(RankState state) {
  std::exception_ptr error = BucketSynchronizer::send_gradients(state);
  if (steps_are_lost_ && !error) error = std::make_exception_ptr(RuntimeError(std::string("DataParallel: ") + kUnusedGradients));
  return error;
}

// The forward that led to this gradient must have waited for the parameter, or it has used an old one.
void OrderedSynchronizer::check_awaited(size_t parameter) const {
  if (!is_late_[parameter]) return;
  const std::string module = modules_.missing_await(parameter);
  if (module.empty()) return;
  throw RuntimeError(
      fmt::format("DataParallel: {} was used before its last update had come: {} did not call await_parameters() in this forward; expected "
                  "that call on "
                  "every path, as in the first forward",
                  setup().parameters[parameter].name, module));
}

void OrderedSynchronizer::receive_gradients(const StepAgreement& agreement) {
  const bool had_learned = has_learned();
  BucketSynchronizer::receive_gradients(agreement);
  if (!had_learned) {
    modules_.learn();
    has_launch_order_ = takes_plan(setup().options);
  } else if (!has_launch_order_) {
    agree_on_launch_order(agreement.first_with_data());
  }
  is_late_.assign(is_late_.size(), false);
  owed_.clear();
  for (const int64_t bucket : launcher() == nullptr ? std::vector<int64_t>{} : launcher()->not_received()) {
    const Bucket& tensors = plan().buckets[static_cast<size_t>(bucket)];
    for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
      is_late_[static_cast<size_t>(communication().order[static_cast<size_t>(position)])] = true;
    }
    anything_late_ = true;
    are_unclaimed_ = true;
  }
  modules_.begin_forward();
  last_forward_wait_s_ = std::exchange(forward_wait_s_, 0);
}

void OrderedSynchronizer::drop_gradients() {
  BucketSynchronizer::drop_gradients();
  is_late_.assign(is_late_.size(), false);
  modules_.begin_forward();
}

void OrderedSynchronizer::step(torch::optim::Optimizer& optimizer) {
  settle();
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  if (is_step_open())
    throw RuntimeError(
        "DataParallel: the optimiser's step before the end of the gradients'; expected finish_gradient_synchronization() first");
  if (anything_late_) check_steps_partially(optimizer);
  are_unclaimed_ = false;
  optimizer.step();
  if (anything_late_) owed_.add(optimizer);
}

void OrderedSynchronizer::drain() {
  settle();
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  if (is_step_open()) return;  // what is under way is this step's
  settled().follow();
  are_unclaimed_ = false;
  try {
    receive_all_late();
  } catch (const std::exception& error) {
    lose_group(error);
  }
  is_late_.assign(is_late_.size(), false);  // nothing that could be used too early
}

void OrderedSynchronizer::module_awaits(const torch::nn::Module& module) {
  settle();
  const std::lock_guard lock(mutex_);
  modules_.note(module);
  settled().follow();
  if (!anything_late_) return;
  throw_if_lost();
  const std::vector<int64_t> buckets = late_buckets_of(module);
  if (buckets.empty()) return;
  const auto started = std::chrono::steady_clock::now();
  try {
    receive_in_turn(buckets);
  } catch (const std::exception& error) {
    lose_group(error);
  }
  forward_wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

// In launch order.
std::vector<int64_t> OrderedSynchronizer::late_buckets_of(const torch::nn::Module& module) const {
  std::vector<int64_t> buckets;
  const std::vector<size_t>& parameters = modules_.parameters_of(module);
  if (parameters.empty()) return buckets;
  const GradientBuckets& all = launcher()->buckets();
  for (const int64_t bucket : launcher()->not_received()) {
    const bool is_needed = std::ranges::any_of(parameters, [&](size_t parameter) {
      const int64_t position = position_of(parameter);
      return all.bucket_of(position) <= bucket && bucket <= all.last_bucket_of(position);
    });
    if (is_needed) buckets.push_back(bucket);
  }
  return buckets;
}

// While one has not come, the optimiser runs on others that have.
void OrderedSynchronizer::receive_in_turn(const std::vector<int64_t>& buckets) {
  for (const int64_t bucket : buckets) {
    while (!launcher()->has_come(bucket)) {
      const std::vector<int64_t> late = launcher()->not_received();
      const auto other = std::ranges::find_if(late, [this](int64_t each) { return launcher()->has_come(each); });
      if (other == late.end()) break;
      receive_late(*other);
    }
    if (!launcher()->is_received(bucket)) receive_late(bucket);
  }
  if (launcher()->not_received().empty()) {
    anything_late_ = false;
    owed_.clear();
    keep_stats();
  }
}

void OrderedSynchronizer::receive_all_late() {
  if (!anything_late_) return;
  receive_in_turn(launcher()->not_received());
}

void OrderedSynchronizer::receive_late(int64_t bucket) {
  std::vector<int64_t> complete;
  {
    RECORD_USER_SCOPE("forward waits");
    complete = receive(bucket, [this] { return fmt::format("{} of step {}, in the forward after it", place(), steps_finished() - 1); });
  }
  settled().set();
  if (steps_are_lost_ || complete.empty()) return;
  if (owed_.empty()) return adopt(complete);
  RECORD_USER_SCOPE("optimiser");
  std::vector<at::Tensor> parameters;
  for (const int64_t position : complete) parameters.push_back(tensor_at(position));
  owed_.pay(parameters, [&] { adopt(complete); });
  settled().set();
}

void OrderedSynchronizer::agree_on_launch_order(int root) {
  at::Tensor order = at::tensor(order_by_need(), at::kLong);
  broadcast(setup().control, {order}, root);
  const auto* first = order.const_data_ptr<int64_t>();
  set_launch_order({first, first + order.numel()});
  has_launch_order_ = true;
}

// From the times of the step that ended, in which all buckets have come.
std::vector<int64_t> OrderedSynchronizer::order_by_need() const {
  const std::vector<BucketStats>& stats = launcher()->stats();
  double busy_s = 0;
  double bytes = 0;
  double last_end_s = 0;
  for (const BucketStats& bucket : stats) {
    busy_s += std::max(0.0, bucket.end_s - std::max(bucket.launch_s, last_end_s));
    bytes += static_cast<double>(bucket.bytes_on_wire);
    last_end_s = std::max(last_end_s, bucket.end_s);
  }
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < stats.size(); ++i) {  // launched in the order in which they lie
    const Bucket& tensors = plan().buckets[i];
    int64_t needed = std::numeric_limits<int64_t>::max();
    for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
      needed = std::min(needed, modules_.first_need()[static_cast<size_t>(communication().order[static_cast<size_t>(position)])]);
    }
    transfers.push_back({.ready_s = stats[i].launch_s,
                         .duration_s = bytes == 0 ? 0 : busy_s * static_cast<double>(stats[i].bytes_on_wire) / bytes,
                         .needed = static_cast<double>(needed)});
  }
  return launch_order_by_need(transfers);
}

DataParallelStats OrderedSynchronizer::stats() const {
  DataParallelStats result = BucketSynchronizer::stats();
  const std::lock_guard lock(mutex_);
  result.forward_wait_s = last_forward_wait_s_;
  if (launcher() == nullptr) return result;
  for (int64_t bucket = 0; bucket < launcher()->buckets().bucket_count(); ++bucket) {
    if (may_arrive_later(bucket)) result.awaited_bytes += launcher()->buckets().gradient_bytes(bucket);
  }
  return result;
}

}  // namespace firkin
