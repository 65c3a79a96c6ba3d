#include "first_use.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/await_parameters.h"

namespace firkin {
namespace {

// All AwaitingModules, which are told of every await_parameters().
struct Listeners {
  std::mutex mutex;
  std::vector<const AwaitingModules*> all;
  std::atomic<bool> any = false;
};

Listeners& listeners() {
  static Listeners* const kListeners = new Listeners;  // never destroyed: modules may outlive static objects
  return *kListeners;
}

// torch.func's transforms (jvp, jacrev) around a forward; what arrives in it, and is stepped, is not part of what they transform.
constexpr c10::DispatchKeySet kTransforms({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                           c10::DispatchKey::FuncTorchDynamicLayerBackMode});

}  // namespace

void await_parameters(const torch::nn::Module& module) {
  Listeners& listening = listeners();
  if (!listening.any) return;
  std::vector<const AwaitingModules*> told;
  {
    const std::lock_guard lock(listening.mutex);
    std::ranges::copy_if(listening.all, std::back_inserter(told), [&](const auto* each) { return each->owners_.contains(&module); });
  }
  for (const AwaitingModules* each : told) each->on_await_(module);
}

std::string why_not_awaited(std::vector<NamedTensor> parameters) {
  std::ranges::sort(parameters, {}, [](const NamedTensor& p) { return p.tensor.const_data_ptr(); });
  for (size_t i = 1; i < parameters.size(); ++i) {
    const NamedTensor &one = parameters[i - 1], &other = parameters[i];
    const at::MemOverlapStatus overlap = at::get_overlap_status(one.tensor, other.tensor);
    if (overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial) continue;
    return fmt::format("{} and {} share memory, and the strategies ordered and sharded step each by itself; expected one parameter",
                       one.name, other.name);
  }
  return "";
}

AwaitingModules::AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters, OnAwait on_await)
    : root_(module), on_await_(std::move(on_await)), owners_of_(parameters.size()), is_awaited_(parameters.size(), false) {
  for (size_t i = 0; i < parameters.size(); ++i) index_of_.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  owners_[&module].name = "the module itself";
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) owners_[item.value().get()].name = item.key();
  const std::lock_guard lock(listeners().mutex);
  listeners().all.push_back(this);
  listeners().any = true;
}

AwaitingModules::~AwaitingModules() {
  const std::lock_guard lock(listeners().mutex);
  std::erase(listeners().all, this);
  listeners().any = !listeners().all.empty();
}

bool AwaitingModules::note(const torch::nn::Module& module, int64_t moment) {
  const auto known = owners_.find(&module);
  if (known == owners_.end()) return false;
  if (!has_learned_) known->second.was_seen = true;
  if (std::exchange(known->second.has_awaited, true)) return false;
  known->second.awaited_at = moment;
  return true;
}

void AwaitingModules::learn() {
  has_learned_ = true;
  is_awaited_.assign(is_awaited_.size(), true);
  learn(root_, nullptr);
  for (size_t i = 0; i < is_awaited_.size(); ++i) is_awaited_[i] = is_awaited_[i] && !owners_of_[i].empty();
}

// innermost: the innermost of the modules around this one that were seen awaiting.
void AwaitingModules::learn(const torch::nn::Module& module, Owner* innermost) {
  if (const auto own = owners_.find(&module); own != owners_.end() && own->second.was_seen) innermost = &own->second;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto known = index_of_.find(item.value().unsafeGetTensorImpl());
    if (known == index_of_.end()) continue;
    const size_t parameter = known->second;
    if (innermost == nullptr) {
      is_awaited_[parameter] = false;
    } else if (std::ranges::find(innermost->parameters, parameter) == innermost->parameters.end()) {
      innermost->parameters.push_back(parameter);
      owners_of_[parameter].push_back(innermost);
    }
  }
  for (const auto& child : module.children()) learn(*child, innermost);
}

int64_t AwaitingModules::first_use(size_t parameter) const {
  if (!is_awaited_[parameter]) return 0;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t first = kNever;
  int64_t any = 0;  // for when no owner has awaited this time
  for (const Owner* owner : owners_of_[parameter]) {
    if (owner->has_awaited) first = std::min(first, owner->awaited_at);
    any = std::max(any, owner->awaited_at);
  }
  return first == kNever ? any : first;
}

const std::vector<size_t>& AwaitingModules::parameters_of(const torch::nn::Module& module) const {
  static const std::vector<size_t> kNone;
  const auto known = owners_.find(&module);
  return known == owners_.end() ? kNone : known->second.parameters;
}

std::vector<size_t> AwaitingModules::indices_in(const torch::nn::Module& module) const {
  std::vector<size_t> indices;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto known = index_of_.find(parameter.unsafeGetTensorImpl());
    if (known != index_of_.end()) indices.push_back(known->second);
  }
  return indices;
}

void AwaitingModules::begin_forward() {
  for (auto& [module, owner] : owners_) owner.has_awaited = false;
  received_.clear();
}

void AwaitingModules::check_awaited(size_t parameter, const std::string& name) const {
  if (received_.contains(parameter)) return;
  const auto& owners = owners_of_[parameter];
  const auto idle = std::ranges::find_if(owners, [](const Owner* owner) { return !owner->has_awaited; });
  if (idle == owners.end()) return;
  throw RuntimeError(
      fmt::format("DataParallel: {} was used before its last update arrived: {} did not call await_parameters() in this forward; expected "
                  "that call on every path, as in the first forward",
                  name, (*idle)->name));
}

std::vector<double> ForwardTimes::seconds() const {
  std::vector<double> result;
  for (size_t i = 0; i < pauses.size(); ++i) {
    result.push_back(i == 0 ? 0 : result.back() + seconds_between(pauses[i - 1].to, pauses[i].from));
  }
  return result;
}

void FirstUse::renewed(BucketTransport& transport) {
  transport_ = &transport;
  modules_.emplace(*setup_.module, setup_.parameters, [this](const torch::nn::Module& module) { module_awaits(module); });
  pauses_.assign(1, {});
  is_late_.assign(setup_.parameters.size(), false);
}

// The forward that led to a gradient must have waited for the parameter, or it has used an old value.
void FirstUse::check(std::optional<size_t> gradient) {
  if (steps_are_lost_) throw RuntimeError(std::string("DataParallel: ") + unused_);
  if (gradient && is_late_[*gradient]) modules_->check_awaited(*gradient, setup_.parameters[*gradient].name);
}

void FirstUse::ended(const StepAgreement& /*agreement*/, bool is_good) {
  if (is_good) return;
  steps_are_lost_ = false;  // that step has failed, and the next one starts clean
  is_late_.assign(is_late_.size(), false);
  modules_->begin_forward();
}

bool FirstUse::may_be_late(int64_t bucket) const {
  return std::ranges::all_of(transport().parameters_in(bucket),
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
  std::vector<int64_t> first_use(transport().communication().plan.buckets.size(), std::numeric_limits<int64_t>::max());
  for (size_t bucket = 0; bucket < first_use.size(); ++bucket) {
    for (const int64_t parameter : transport().parameters_in(static_cast<int64_t>(bucket))) {
      first_use[bucket] = std::min(first_use[bucket], of_parameters[static_cast<size_t>(parameter)]);
    }
  }
  return first_use;
}

void FirstUse::module_awaits(const torch::nn::Module& module) {
  const auto held = synchronizer_.lock();
  const bool is_first = modules_->note(module, std::ssize(pauses_));
  transport().settled().follow();
  if (anything_late_) synchronizer_.throw_if_lost();
  if (is_first) receive_in_forward(modules_->parameters_of(module));  // later in a forward it has them
}

void FirstUse::receive_in_forward(const std::vector<size_t>& parameters) {
  const DeviceTime from = device_now(clock_);
  DeviceTime to = from;
  if (anything_late_) {
    const c10::impl::ExcludeDispatchKeyGuard no_transforms(kTransforms);
    synchronizer_.or_lose_group([&] { receive_those(parameters); });
    to = device_now(clock_);
    forward_wait_s_ += std::chrono::duration<double>(to.host - from.host).count();
  }
  pauses_.push_back({from, to});
}

// The reader need not be the module that learn() saw awaiting them, and does not become it.
void FirstUse::receive_parameters(const torch::nn::Module& part) {
  const auto held = synchronizer_.lock();
  const std::vector<size_t> parameters = modules_->indices_in(part);
  modules_->note_received(parameters);  // even if they have come with others
  if (!anything_late_) return;
  synchronizer_.throw_if_lost();
  transport().settled().follow();
  receive_in_forward(parameters);
}

void FirstUse::drain() {
  const auto held = synchronizer_.enter();
  if (synchronizer_.is_step_open()) return;  // what is in flight is this step's
  transport().settled().follow();
  const c10::impl::ExcludeDispatchKeyGuard no_transforms(kTransforms);
  synchronizer_.or_lose_group([&] { receive_rest(); });
}

void FirstUse::receive_rest() {
  receive_all();
  is_late_.assign(is_late_.size(), false);  // nothing is left that could be used too early
}

void FirstUse::add_to(DataParallelStats& stats) const {
  const auto held = synchronizer_.lock();
  stats.forward_wait_s = last_forward_wait_s_;
  const GradientBuckets* buckets = transport().buckets();
  for (int64_t bucket = 0; buckets != nullptr && bucket < buckets->bucket_count(); ++bucket) {
    if (may_be_late(bucket)) stats.awaited_bytes += buckets->gradient_bytes(bucket);
  }
}

}  // namespace firkin
