#include "synchronizer.h"

#include <ATen/ops/any.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "firkin/comm/device.h"

namespace firkin {
namespace {

constexpr const char* kAllReplaced =
    "DataParallel: every trained parameter of the module was replaced, and the optimiser has stepped by this rank's own gradients; "
    "expected parameters_changed() on every rank after such a change";

bool holds_any(const torch::nn::Module& module, const std::vector<NamedTensor>& known) {
  const std::vector<NamedTensor> held = parameters_in(module);
  return std::ranges::any_of(known, [&](const NamedTensor& parameter) {
    return std::ranges::any_of(held, [&](const NamedTensor& each) { return each.tensor.is_same(parameter.tensor); });
  });
}

}  // namespace

Synchronizer::Synchronizer(StepSetup setup)
    : setup_(std::move(setup)),
      parameters_(*setup_.module, setup_.options.strategy.wait == Wait::kAtFirstUse),
      audit_(setup_),
      watch_([this] { translated([this] { on_backward_ended(); }); }, [this](const std::string& reason) { on_backward_failed(reason); }) {
  prepare_steps();
  if (audit_.is_due(step_)) audit_.note_optimizer_step();  // the first step begins as if it had a step before it
}

void Synchronizer::prepare_steps() {
  parameters_.look();
  audit_.renew();
  is_begun_ = false;
  agreement_.emplace(setup_.control, setup_.options.find_unused_parameters ? setup_.parameters.size() : 0);
  if (setup_.options.broadcast_buffers) buffers_.emplace(*setup_.module, setup_.control, setup_.group);
  touched_.assign(setup_.parameters.size(), false);
  used_.assign(setup_.parameters.size(), false);
  transport_ = std::make_unique<BucketTransport>(setup_, adopted_);  // last: may throw
}

Synchronizer::~Synchronizer() {
  remove_hooks();
  if (is_lost()) return;
  if (const std::string suspicion = audit_.suspicion("may now differ"); !suspicion.empty()) {
    TORCH_WARN("DataParallel: ", suspicion);
  }
}

void Synchronizer::install_hooks() {
  hooks_ = std::make_unique<ParameterHooks>(setup_.parameters, [this](size_t parameter) { translated([&] { on_gradient(parameter); }); });
  hook_newcomers(parameters_in(*setup_.module));
}

void Synchronizer::hook_newcomers(const std::vector<NamedTensor>& all) {
  const std::lock_guard held(mutex_);
  newcomers_.reset();
  newcomers_.emplace(all, setup_.parameters, [this] { translated([this] { on_newcomers_gradient(); }); });
}

void Synchronizer::remove_hooks() {
  watch_.close();
  hooks_.reset();
  newcomers_.reset();
}

std::unique_lock<std::recursive_mutex> Synchronizer::lock() const {
  watch_.settle();
  return std::unique_lock(mutex_);
}

std::unique_lock<std::recursive_mutex> Synchronizer::enter() const {
  std::unique_lock held = lock();
  throw_if_lost();
  return held;
}

const std::optional<StepFailure>& Synchronizer::last_failure() const {
  watch_.settle();
  return failures_.failure();
}

bool Synchronizer::set_gradient_synchronization(bool on) {
  const auto held = lock();
  return std::exchange(synchronizes_, on);
}

std::string Synchronizer::where() const {
  const std::string what = transport_->first_pending();
  const std::string before = step_ == 0 ? "it has finished no step" : fmt::format("it last finished step {}", step_ - 1);
  return fmt::format("{} of step {}; {}", what.empty() ? "the end" : what, step_, before);
}

std::string Synchronizer::removed_by_hook(const NamedTensor& parameter) {
  if (!parameter.tensor.requires_grad()) {
    return fmt::format("{} was frozen between forward and backward; expected requires_grad to change before forward", parameter.name);
  }
  return fmt::format(
      "a hook removed the gradient of {} before it was averaged; expected hooks that leave it in place, and steps of the optimiser after "
      "backward()",
      parameter.name);
}

void Synchronizer::begin_step() {
  throw_if_lost();
  if (is_capturing(setup_.parameters[0].tensor.device())) {  // a replay would lack the step's agreement
    throw RuntimeError("DataParallel: backward during a graph capture; expected forward, backward and step outside a capture");
  }
  open_ = OpenStep();
  setup_.group.place->step = setup_.control.place->step = step_;
  // On a CPU autograd works in the thread that calls it.
  const bool is_on_cpu = std::ranges::all_of(setup_.parameters, [](const NamedTensor& each) { return each.tensor.is_cpu(); });
  record_step(setup_.control, setup_.control.place->wrapper, step_, is_on_cpu ? nullptr : BackwardWatch::caller());
  or_lose_group([&] {  // if this throws, the rank has nothing that it could send
    for (StepExtension* extension : extensions_) extension->begin();
    transport_->begin();
  });
  open_->suspects = audit_.note_begin();
}

void Synchronizer::note_first_gradient() {
  if (std::exchange(is_begun_, true) || !audit_.is_due(step_)) return;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->before_comparison();
    audit_.note_first_gradient();
  });
}

std::vector<NamedTensor> Synchronizer::untouched_buffers() const {
  return buffers_ ? buffers_->untouched() : std::vector<NamedTensor>{};
}

// Begins the step in which send() will notice the change.
void Synchronizer::on_newcomers_gradient() {
  const auto held = lock();
  if (watch_.has_failed() || !synchronizes_) return;
  throw_if_lost();
  lose_unfinished_step();
  if (open_) return;
  failures_.note_gradient();
  begin_step();
  note_first_gradient();
  watch_.attach();
}

void Synchronizer::on_gradient(size_t parameter) {
  const auto held = lock();
  if (watch_.has_failed()) return;  // this backward, in another thread: its step is over
  throw_if_lost();
  lose_unfinished_step();
  const NamedTensor& which = setup_.parameters[parameter];
  if (open_ && open_->is_backward_over) {
    open_->failure = fmt::format(
        "{} received a gradient between backward and finish_gradient_synchronization(); expected that call right after every synchronising "
        "backward (accumulate earlier, under no_sync())",
        which.name);
    throw RuntimeError("DataParallel: " + *open_->failure);
  }
  failures_.note_gradient();
  touched_[parameter] = true;
  if (!synchronizes_) {
    note_first_gradient();
    for (StepExtension* extension : extensions_) extension->check(parameter);
    return audit_.note_local_gradient(parameter);
  }
  const bool begins = !open_;
  if (begins) begin_step();
  note_first_gradient();
  watch_.attach();
  if (!open_) return;  // this backward has failed meanwhile
  if (begins) skip_unreached();
  const at::Tensor& gradient = which.tensor.grad();
  if (!gradient.defined()) throw RuntimeError("DataParallel: " + removed_by_hook(which));
  if (gradient.requires_grad()) {
    throw RuntimeError(
        fmt::format("DataParallel: the gradient of {} has a graph (backward with create_graph), which averaging would lose; expected "
                    "torch::autograd::grad(..., create_graph = true), with its result added to the loss before a single backward()",
                    which.name));
  }
  for (StepExtension* extension : extensions_) extension->check(parameter);
  transport_->ready(parameter);
}

// Counts parameters that this backward will not reach as ready, so that they block no bucket.
void Synchronizer::skip_unreached() {
  if (!setup_.options.find_unused_parameters || !transport_->has_learned()) return;
  const std::vector<bool> may_reach = BackwardWatch::may_reach(hooks_->nodes());
  for (size_t i = 0; i < may_reach.size(); ++i) {
    if (may_reach[i]) continue;
    used_[i] = setup_.parameters[i].tensor.grad().defined();
    transport_->skip(i);
  }
}

void Synchronizer::on_backward_ended() {
  const std::lock_guard held(mutex_);
  if (!open_) return;
  open_->is_backward_over = true;
  if (!setup_.options.finish_with_backward) return;
  failures_.forget_report();
  send(RankState::kWithData);
  complete();
  failures_.throw_if_failed();
}

void Synchronizer::on_backward_failed(const std::string& reason) {
  const std::lock_guard held(mutex_);
  if (!open_) return;
  try {
    open_->failure = reason;
    send(RankState::kFailed);
    complete();
    failures_.note_own_exception();
  } catch (...) {  // backward() is throwing already; the next call says that the group is lost
  }
}

// Loses the group if a step that was to end with backward did not: something threw among autograd's final callbacks.
void Synchronizer::lose_unfinished_step() {
  if (!open_ || !open_->is_backward_over || !setup_.options.finish_with_backward) return;
  lose_group(RuntimeError("the gradients of the step did not arrive"));
}

void Synchronizer::finish() {
  const auto held = enter();
  lose_unfinished_step();
  if (!open_) {
    failures_.report();
    if (setup_.options.finish_with_backward || !synchronizes_) return;
    begin_step();
  }
  send(RankState::kWithData);
  complete();
  failures_.forget_report();
  failures_.throw_if_failed();
}

void Synchronizer::abandon(const std::string& reason, const std::exception_ptr& handled) {
  const auto held = enter();
  lose_unfinished_step();
  if (open_) {
    failures_.note_handler(handled);
  } else {
    if (failures_.explains(handled)) return;
    begin_step();
  }
  if (!open_->failure) open_->failure = reason;
  send(RankState::kFailed);
  complete();
  failures_.note_abandoned();
}

bool Synchronizer::take_part_without_data() {
  const auto held = lock();
  if (open_) throw RuntimeError("join(): the last step is not finished; expected finish_gradient_synchronization() after its backward");
  begin_step();
  forget_all_gradients();
  send(RankState::kWithoutData);
  complete();
  failures_.throw_if_failed();
  return had_data_;
}

// For the search for crossed waits, each call is a step of a wrapper of its own.
Synchronizer::Call::Call(Synchronizer& synchronizer, std::string_view name)
    : synchronizer_(synchronizer), before_(*synchronizer.setup_.control.place) {
  constexpr int64_t kWrappers = int64_t{1} << 32;
  const auto number = static_cast<int64_t>(std::hash<std::string_view>{}(name) % static_cast<size_t>(kWrappers / 4));
  WaitPlace place;
  place.wrapper = -1 - before_.wrapper - number * kWrappers;
  place.step = ++synchronizer.calls_.try_emplace(std::string(name), -1).first->second;
  place.name = fmt::format("{} on {}", name, before_.name);
  synchronizer.setup_.group.place = synchronizer.setup_.control.place = place;
  record_step(synchronizer.setup_.control, place.wrapper, place.step);
}

Synchronizer::Call::~Call() {
  synchronizer_.setup_.group.place = synchronizer_.setup_.control.place = before_;
}

void Synchronizer::audit() {
  const auto held = enter();
  if (open_) throw RuntimeError("audit() called within a step; expected between steps");
  const Call call(*this, "audit()");
  const std::string difference = or_lose_group([&] { return audit_.compare(step_, untouched_buffers()); });
  if (!difference.empty()) throw AuditError("DataParallel: " + difference);
}

// A program that steps with gradients of its own (an inner loop whose steps it takes back) may do so any number of
// times. Of several optimisers, one may call another. No hook is on parameters that replaced all others, so their
// backward begins no step.
void Synchronizer::note_optimizer_step(const void* optimizer) {
  const auto held = lock();
  if (is_lost() || is_capturing(setup_.parameters[0].tensor.device())) return;  // a graph's step comes when it is replayed
  if (!is_begun_) {
    const bool is_first = step_ > 0 && !optimizer_steps_.contains(optimizer);
    if (is_first || !are_gradients_placeholders()) {
      const uint64_t steps = ++optimizer_steps_[optimizer];
      if (steps > 1 && !holds_any(*setup_.module, setup_.parameters)) throw RuntimeError(kAllReplaced);
    }
  }
  if (open_ || !audit_.is_due(step_)) return;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->before_comparison();
    audit_.note_optimizer_step();
  });
}

// Whether the program has put zeros where gradients would be, to have an optimiser make its state. Code for checkpoints
// does this, on ranks that have none yet.
bool Synchronizer::are_gradients_placeholders() const {
  bool any = false;
  for (size_t i = 0; i < setup_.parameters.size(); ++i) {
    const at::Tensor& gradient = setup_.parameters[i].tensor.grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided || transport_->is_adopted(i) || at::any(gradient).item<bool>()) return false;
    any = true;
  }
  return any;
}

void Synchronizer::audit_also(const void* owner, Audit::Tensors tensors) {
  const auto held = enter();
  audit_.add(owner, std::move(tensors));
}

void Synchronizer::forget_audited(const void* owner) {
  const auto held = lock();
  audit_.remove(owner);
  const auto gone = optimizer_steps_.extract(owner);  // another may get its address
  if (!gone.empty()) optimizer_steps_[nullptr] = std::max(optimizer_steps_[nullptr], gone.mapped());
}

void Synchronizer::observe_steps(std::function<void()> observer) {
  const auto held = lock();
  observer_ = std::move(observer);
}

DataParallelStats Synchronizer::stats() const {
  const std::lock_guard held(mutex_);
  DataParallelStats result{.tensors = {},
                           .buckets = transport_->finished_stats(),
                           .exposed_wait_s = exposed_wait_s_,
                           .steps = steps_finished_,
                           .began = began_,
                           .ended = ended_};
  for (const int64_t parameter : transport_->communication().order) {
    result.tensors.push_back(setup_.parameters[static_cast<size_t>(parameter)].name);
  }
  return result;
}

void Synchronizer::forget_all_gradients() {
  for (const NamedTensor& parameter : setup_.parameters) parameter.tensor.mutable_grad().reset();
  if (!parameters_.has_changed()) return;
  for (const NamedTensor& parameter : trainable_parameters(*setup_.module)) parameter.tensor.mutable_grad().reset();
}

void Synchronizer::lose_group(const std::exception& error) {
  std::string why = first_line(error.what());
  if (dynamic_cast<const GroupError*>(&error) == nullptr) {
    try {
      give_up(setup_.group, fmt::format("{}: {}", where(), why));
    } catch (const GroupError& lost) {
      why = lost.what();
    }
  }
  note_loss(why);
  open_.reset();
  forget_all_gradients();
  throw GroupError(why);
}

void Synchronizer::note_loss(const std::string& why) {
  failures_.note_loss(fmt::format("DataParallel: the process group was lost in step {}; create a new one: {}", step_, why));
}

}  // namespace firkin
