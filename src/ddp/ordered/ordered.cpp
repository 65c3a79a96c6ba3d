#include "ordered.h"

#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/plan/launch_order.h"

namespace firkin {
namespace {

struct Listeners {
  std::mutex mutex;
  std::unordered_multimap<const torch::nn::Module*, const ForwardListening::Listener*> of_module;
};

std::atomic<int> listening_count = 0;

Listeners& listeners() {
  static Listeners* const kListeners = new Listeners;  // never destroyed: modules may outlive static objects
  return *kListeners;
}

constexpr const char* kUnusedGradients =
    "the gradients of the last step were neither used nor awaited: under the strategy ordered, optimizer.step() alone does not see them; "
    "expected OverlappedOptimizer::step(), or drain() before anything else that reads gradients";

RuntimeError unused_gradients() {
  return RuntimeError(std::string("DataParallel: ") + kUnusedGradients);
}

}  // namespace

ForwardListening::ForwardListening(torch::nn::Module& module, Listener listener) : listener_(std::move(listener)) {
  Listeners& all = listeners();
  const std::lock_guard lock(all.mutex);
  for (const auto& submodule : module.modules(/*include_self=*/false)) modules_.push_back(submodule.get());
  modules_.push_back(&module);
  for (const torch::nn::Module* each : modules_) all.of_module.emplace(each, &listener_);
  ++listening_count;
}

ForwardListening::~ForwardListening() {
  Listeners& all = listeners();
  const std::lock_guard lock(all.mutex);
  for (const torch::nn::Module* each : modules_) {
    const auto [first, last] = all.of_module.equal_range(each);
    for (auto entry = first; entry != last; ++entry) {
      if (entry->second != &listener_) continue;
      all.of_module.erase(entry);
      break;
    }
  }
  --listening_count;
}

void await_parameters(const torch::nn::Module& module) {
  if (listening_count.load(std::memory_order_acquire) == 0) return;
  std::vector<const ForwardListening::Listener*> told;
  {
    Listeners& all = listeners();
    const std::lock_guard lock(all.mutex);
    const auto [first, last] = all.of_module.equal_range(&module);
    for (auto entry = first; entry != last; ++entry) told.push_back(entry->second);
  }
  for (const auto* listener : told) (*listener)(module);
}

AwaitingModules::AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters)
    : owners_of_(parameters.size()), is_awaited_(parameters.size(), false), first_need_(parameters.size(), 0) {
  std::unordered_map<const void*, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) index_of.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  std::vector<const torch::nn::Module*> path;
  add_places(module, "", path, index_of);
}

void AwaitingModules::add_places(const torch::nn::Module& module, const std::string& name, std::vector<const torch::nn::Module*>& path,
                                 const std::unordered_map<const void*, size_t>& index_of) {
  path.push_back(&module);
  owners_[&module].name = name.empty() ? "the module itself" : name;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto known = index_of.find(item.value().unsafeGetTensorImpl());
    if (known != index_of.end()) places_.push_back({.parameter = known->second, .path = path});
  }
  for (const auto& child : module.named_children()) {
    std::string inner = name;
    if (!inner.empty()) inner += '.';
    inner += child.key();
    add_places(*child.value(), inner, path, index_of);
  }
  path.pop_back();
}

void AwaitingModules::note(const torch::nn::Module& module) {
  const auto known = owners_.find(&module);
  if (known == owners_.end()) return;
  known->second.has_awaited = true;
  if (!has_learned_ && known->second.turn < 0) known->second.turn = turns_++;
}

void AwaitingModules::learn() {
  has_learned_ = true;
  is_awaited_.assign(is_awaited_.size(), true);
  std::ranges::fill(first_need_, turns_);
  std::vector<bool> has_place(is_awaited_.size(), false);
  for (const Place& place : places_) {
    const auto owner =
        std::find_if(place.path.rbegin(), place.path.rend(), [&](const auto* module) { return owners_.at(module).turn >= 0; });
    has_place[place.parameter] = true;
    if (owner == place.path.rend()) {
      is_awaited_[place.parameter] = false;
      continue;
    }
    Owner& found = owners_.at(*owner);
    if (std::ranges::find(found.parameters, place.parameter) != found.parameters.end()) continue;
    found.parameters.push_back(place.parameter);
    owners_of_[place.parameter].push_back(&found);
    first_need_[place.parameter] = std::min(first_need_[place.parameter], found.turn);
  }
  for (size_t i = 0; i < is_awaited_.size(); ++i) {
    is_awaited_[i] = is_awaited_[i] && has_place[i];
    if (!is_awaited_[i]) first_need_[i] = turns_;
  }
}

const std::vector<size_t>& AwaitingModules::parameters_of(const torch::nn::Module& module) const {
  static const std::vector<size_t> kNone;
  const auto known = owners_.find(&module);
  return known == owners_.end() ? kNone : known->second.parameters;
}

void AwaitingModules::begin_forward() {
  for (auto& [module, owner] : owners_) owner.has_awaited = false;
}

std::string AwaitingModules::missing_await(size_t parameter) const {
  for (const Owner* owner : owners_of_[parameter]) {
    if (!owner->has_awaited) return owner->name;
  }
  return "";
}

Ordered::Ordered(Synchronizer& synchronizer) : synchronizer_(synchronizer) {
  renewed();
}

Ordered::~Ordered() {
  listening_.reset();
  if (anything_late_) TORCH_WARN("DataParallel: destroyed while gradients of the last step were on their way; ", kUnusedGradients);
}

void Ordered::renewed() {
  const StepSetup& setup = synchronizer_.setup();
  listening_.reset();
  modules_.emplace(*setup.module, setup.parameters);
  is_late_.assign(setup.parameters.size(), false);
  traces_.assign(setup.parameters.size(), {});
  has_launch_order_ = false;
  listening_.emplace(*setup.module, [this](const torch::nn::Module& module) { module_awaits(module); });
}

// Every parameter in it is awaited by a module, in every forward.
bool Ordered::may_arrive_later(int64_t bucket) const {
  if (!has_launch_order_) return false;
  const Bucket& tensors = synchronizer_.transport().communication().plan.buckets[static_cast<size_t>(bucket)];
  for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
    if (!modules_->is_awaited(parameter_at(position))) return false;
  }
  return true;
}

void Ordered::begun() {
  steps_are_lost_ = std::exchange(are_unclaimed_, false);
  receive_all_late();
}

// The forward that led to this gradient must have waited for the parameter, or it has used an old one.
void Ordered::gradient(size_t parameter) {
  if (steps_are_lost_) throw unused_gradients();
  if (!is_late_[parameter]) return;
  const std::string module = modules_->missing_await(parameter);
  if (module.empty()) return;
  throw RuntimeError(
      fmt::format("DataParallel: {} was used before its last update had come: {} did not call await_parameters() in this forward; expected "
                  "that call on every path, as in the first forward",
                  synchronizer_.setup().parameters[parameter].name, module));
}

std::exception_ptr Ordered::objection() const {
  return steps_are_lost_ ? std::make_exception_ptr(unused_gradients()) : nullptr;
}

void Ordered::received(const StepAgreement& agreement, bool is_first) {
  if (is_first) {
    modules_->learn();
    has_launch_order_ = takes_plan(synchronizer_.setup().options);
  } else if (!has_launch_order_) {
    agree_on_launch_order(agreement.first_with_data());
  }
  is_late_.assign(is_late_.size(), false);
  owed_.clear();
  for (const int64_t bucket : synchronizer_.transport().not_received()) {
    const Bucket& tensors = synchronizer_.transport().communication().plan.buckets[static_cast<size_t>(bucket)];
    for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) is_late_[parameter_at(position)] = true;
    anything_late_ = true;
    are_unclaimed_ = true;
  }
  for (size_t i = 0; anything_late_ && i < traces_.size(); ++i) {
    const at::Tensor& gradient = tensor_of(i).grad();
    traces_[i] = gradient.defined() ? trace_of(gradient) : Trace{};
  }
  modules_->begin_forward();
  last_forward_wait_s_ = std::exchange(forward_wait_s_, 0);
}

void Ordered::dropped() {
  steps_are_lost_ = false;  // that step has failed, and the next one starts clean
  is_late_.assign(is_late_.size(), false);
  modules_->begin_forward();
}

// Clipping, say, by a norm that lacks what is on its way.
void Ordered::check_unchanged() const {
  for (size_t i = 0; i < traces_.size(); ++i) {
    const at::Tensor& gradient = tensor_of(i).grad();
    if (is_late_[i] || !gradient.defined() || trace_of(gradient) == traces_[i]) continue;
    throw RuntimeError(
        fmt::format("OverlappedOptimizer: the gradient of {} was changed (clipped?) while others were on their way; expected "
                    "OverlappedOptions::clip_norm, or drain() before gradients are read",
                    synchronizer_.setup().parameters[i].name));
  }
}

void Ordered::step(torch::optim::Optimizer& optimizer) {
  const auto held = synchronizer_.enter();
  if (synchronizer_.is_step_open()) {
    throw RuntimeError(
        "DataParallel: the optimiser's step before the end of the gradients'; expected finish_gradient_synchronization() first");
  }
  if (anything_late_) {
    check_steps_partially(optimizer);
    if (owed_.empty()) check_unchanged();
  }
  are_unclaimed_ = false;
  optimizer.step();
  if (anything_late_) owed_.add(optimizer);
}

void Ordered::drain() {
  const auto held = synchronizer_.enter();
  if (synchronizer_.is_step_open()) return;  // what is under way is this step's
  synchronizer_.transport().settled().follow();
  are_unclaimed_ = false;
  try {
    receive_all_late();
  } catch (const std::exception& error) {
    synchronizer_.lose_group(error);
  }
  is_late_.assign(is_late_.size(), false);  // nothing that could be used too early
}

void Ordered::module_awaits(const torch::nn::Module& module) {
  const auto held = synchronizer_.lock();
  modules_->note(module);
  synchronizer_.transport().settled().follow();
  if (!anything_late_) return;
  synchronizer_.throw_if_lost();
  const std::vector<int64_t> buckets = late_buckets_of(module);
  if (buckets.empty()) return;
  const auto started = std::chrono::steady_clock::now();
  try {
    receive_in_turn(buckets);
  } catch (const std::exception& error) {
    synchronizer_.lose_group(error);
  }
  forward_wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

// In launch order.
std::vector<int64_t> Ordered::late_buckets_of(const torch::nn::Module& module) const {
  std::vector<int64_t> buckets;
  const std::vector<size_t>& parameters = modules_->parameters_of(module);
  if (parameters.empty()) return buckets;
  const BucketTransport& transport = synchronizer_.transport();
  for (const int64_t bucket : transport.not_received()) {
    const bool is_needed = std::ranges::any_of(parameters, [&](size_t parameter) {
      const int64_t position = transport.position_of(parameter);
      return transport.buckets()->bucket_of(position) <= bucket && bucket <= transport.buckets()->last_bucket_of(position);
    });
    if (is_needed) buckets.push_back(bucket);
  }
  return buckets;
}

// While one has not come, the optimiser runs on others that have.
void Ordered::receive_in_turn(const std::vector<int64_t>& buckets) {
  const BucketTransport& transport = synchronizer_.transport();
  for (const int64_t bucket : buckets) {
    while (!transport.has_come(bucket)) {
      const std::vector<int64_t> late = transport.not_received();
      const auto other = std::ranges::find_if(late, [&](int64_t each) { return transport.has_come(each); });
      if (other == late.end()) break;
      receive_late(*other);
    }
    if (!transport.is_received(bucket)) receive_late(bucket);
  }
  if (!transport.not_received().empty()) return;
  anything_late_ = false;
  owed_.clear();
}

void Ordered::receive_all_late() {
  if (anything_late_) receive_in_turn(synchronizer_.transport().not_received());
}

void Ordered::adopt(const std::vector<int64_t>& positions) {
  synchronizer_.transport().adopt(positions);
}

void Ordered::receive_late(int64_t bucket) {
  BucketTransport& transport = synchronizer_.transport();
  std::vector<int64_t> complete;
  {
    RECORD_USER_SCOPE("forward waits");
    complete = transport.receive_bucket(bucket, [this, &transport] {
      return fmt::format("{} of step {}, in the forward after it", transport.first_pending(), synchronizer_.steps_finished() - 1);
    });
  }
  transport.settled().set();
  if (steps_are_lost_ || complete.empty()) return;
  if (owed_.empty()) return adopt(complete);
  RECORD_USER_SCOPE("optimiser");
  std::vector<at::Tensor> parameters;
  for (const int64_t position : complete) parameters.push_back(tensor_of(parameter_at(position)));
  owed_.pay(parameters, [&] { adopt(complete); });
  transport.settled().set();
}

void Ordered::agree_on_launch_order(int root) {
  at::Tensor order = at::tensor(order_by_need(), at::kLong);
  broadcast(synchronizer_.setup().control, {order}, root);
  const auto* first = order.const_data_ptr<int64_t>();
  synchronizer_.transport().set_launch_order({first, first + order.numel()});
  has_launch_order_ = true;
}

// From the times of the step that ended, in which all buckets have come.
std::vector<int64_t> Ordered::order_by_need() const {
  const BucketTransport& transport = synchronizer_.transport();
  double busy_s = 0;
  double bytes = 0;
  double last_end_s = 0;
  for (const BucketStats& bucket : transport.stats()) {
    busy_s += std::max(0.0, bucket.end_s - std::max(bucket.launch_s, last_end_s));
    bytes += static_cast<double>(bucket.bytes_on_wire);
    last_end_s = std::max(last_end_s, bucket.end_s);
  }
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < transport.stats().size(); ++i) {  // launched in the order in which they lie
    const BucketStats& bucket = transport.stats()[i];
    const Bucket& tensors = transport.communication().plan.buckets[i];
    int64_t needed = std::numeric_limits<int64_t>::max();
    for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
      needed = std::min(needed, modules_->first_need()[parameter_at(position)]);
    }
    transfers.push_back({.ready_s = bucket.launch_s,
                         .duration_s = bytes == 0 ? 0 : busy_s * static_cast<double>(bucket.bytes_on_wire) / bytes,
                         .needed = static_cast<double>(needed)});
  }
  return launch_order_by_need(transfers);
}

void Ordered::add_to(DataParallelStats& stats) const {
  const auto held = synchronizer_.lock();
  stats.forward_wait_s = last_forward_wait_s_;
  const GradientBuckets* buckets = synchronizer_.transport().buckets();
  for (int64_t bucket = 0; buckets != nullptr && bucket < buckets->bucket_count(); ++bucket) {
    if (may_arrive_later(bucket)) stats.awaited_bytes += buckets->gradient_bytes(bucket);
  }
}

}  // namespace firkin
