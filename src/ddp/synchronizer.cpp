#include "synchronizer.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/comm/device.h"

namespace firkin {
namespace {

constexpr const char* kSteppedByItself =
    "{} changed under gradients that this rank had accumulated under no_sync() and not synchronised, and ranks {}: if the optimiser "
    "stepped it, expected a synchronising backward before every step of the optimiser";
constexpr int64_t kMostPatience = 100;  // steps
constexpr const char* kGraphOfGradient =
    "DataParallel: the gradient of {} has a graph (backward with create_graph), which averaging would lose; expected "
    "torch::autograd::grad(..., create_graph = true), with its result added to the loss before a single backward()";
constexpr size_t kLongestReason = 1000;  // bytes
// For other ranks, when a communication hook has failed here: they may wait for what it was to send next.
constexpr std::chrono::seconds kPatienceWithHook{10};

// What this library throws out of a step that another rank has failed too.
bool is_error_of_a_step(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StepError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

StepError::StepError(StepFailure failure)
    : RuntimeError(fmt::format("step {} failed on rank {}: {}", failure.step, failure.rank, failure.reason)),
      failure_(std::move(failure)) {}

Synchronizer::Synchronizer(StepSetup setup)
    : setup_(std::move(setup)),
      parameters_(*setup_.module, setup_.options.strategy.wait == Wait::kAtFirstUse),
      audit_(setup_.options.audit_every, [this] { return audited(); }),
      watch_({.ended = [this] { translated([this] { on_backward_ended(); }); },
              .failed = [this](const std::string& reason) { on_backward_failed(reason); }}) {
  prepare_steps();
}

// Of the setup's parameters.
void Synchronizer::prepare_steps() {
  parameters_.look();
  audited_ = parameters_in(*setup_.module);
  audited_buffers_.clear();
  agreement_.emplace(setup_.control, setup_.options.find_unused_parameters ? setup_.parameters.size() : 0);
  if (setup_.options.broadcast_buffers) buffers_.emplace(*setup_.module, setup_.control, setup_.group);
  touched_.assign(setup_.parameters.size(), false);
  used_.assign(setup_.parameters.size(), false);
  transport_ = std::make_unique<BucketTransport>(setup_, extensions_, adopted_);  // last: may throw
}

Synchronizer::~Synchronizer() {
  remove_hooks();
  if (lost_) return;
  if (const std::string parameter = stepped_by_itself(); !parameter.empty()) {
    TORCH_WARN("DataParallel: ", fmt::format(kSteppedByItself, parameter, "may now differ"));
  }
}

void Synchronizer::install_hooks() {
  hooks_ = std::make_unique<ParameterHooks>(setup_.parameters, [this](size_t parameter) { translated([&] { on_gradient(parameter); }); });
}

void Synchronizer::remove_hooks() {
  watch_.close();
  hooks_.reset();
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
  return last_failure_;
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

void Synchronizer::begin_step() {
  throw_if_lost();
  if (is_capturing(setup_.parameters[0].tensor.device())) {  // a replay would come without the step's agreement
    throw RuntimeError("DataParallel: backward during a graph capture; expected forward, backward and step outside a capture");
  }
  open_ = OpenStep();
  setup_.group.place->step = setup_.control.place->step = step_;
  // On a CPU autograd works in the thread that calls it.
  const bool is_on_cpu = std::ranges::all_of(setup_.parameters, [](const NamedTensor& each) { return each.tensor.is_cpu(); });
  note_step(setup_.control, setup_.control.place->wrapper, step_, is_on_cpu ? nullptr : BackwardWatch::caller());
  or_lose_group([&] {  // there is nothing that this rank could send
    for (StepExtension* extension : extensions_) extension->begun();
    transport_->begin();
  });
  if (const std::string parameter = stepped_by_itself(); !parameter.empty()) {
    open_->suspects = true;
    suspicion_ = fmt::format(kSteppedByItself, parameter, "differ");
  }
  local_.clear();
}

// In this step.
bool Synchronizer::compares() const {
  return audit_.is_due(step_) || (suspect_ && step_ >= compare_at_);
}

void Synchronizer::note_what_is_compared() {
  if (std::exchange(is_begun_, true) || !compares()) return;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->before_comparison();
    checksum_ = audit_.checksum();
  });
}

std::vector<NamedTensor> Synchronizer::audited() const {
  std::vector<NamedTensor> all = audited_;
  all.insert(all.end(), audited_buffers_.begin(), audited_buffers_.end());
  return all;
}

// Those that are as a broadcast has left them: as numbers, because forwards write into buffers before the comparison.
void Synchronizer::note_buffers() {
  audited_buffers_.clear();
  if (!buffers_) return;
  const std::vector<NamedTensor> buffers = buffers_->untouched();
  const std::vector<uint64_t> checksums = checksums_of(buffers);
  for (size_t i = 0; i < buffers.size(); ++i) {
    at::Tensor number;
    if (buffers[i].tensor.defined()) number = at::scalar_tensor(static_cast<int64_t>(checksums[i]), at::kLong);
    audited_buffers_.push_back({"buffer " + buffers[i].name, std::move(number)});
  }
}

// On any rank: there a forward has come between the last step and an audit. Collective.
void Synchronizer::forget_buffers_that_moved() {
  const auto count = static_cast<double>(audited_buffers_.size());
  if (const auto counts = max_over_ranks(setup_.control, {count, -count}); counts[0] != -counts[1]) audited_buffers_.clear();
  if (audited_buffers_.empty()) return;
  std::vector<double> moved;
  for (const NamedTensor& buffer : audited_buffers_) moved.push_back(buffer.tensor.defined() ? 0 : 1);
  moved = max_over_ranks(setup_.control, moved);
  for (size_t i = 0; i < moved.size(); ++i) {
    if (moved[i] != 0) audited_buffers_[i].tensor.reset();
  }
}

void Synchronizer::on_gradient(size_t parameter) {
  watch_.settle();
  const std::lock_guard held(mutex_);
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
  has_gradient_since_failure_ = true;
  touched_[parameter] = true;
  if (!synchronizes_) {
    note_what_is_compared();
    for (StepExtension* extension : extensions_) extension->gradient(parameter);
    if (!local_.contains(parameter)) local_.emplace(parameter, trace_of(which.tensor));
    return;
  }
  const bool begins = !open_;
  if (begins) begin_step();
  note_what_is_compared();
  watch_.attach();
  if (!open_) return;  // this backward has failed meanwhile
  if (begins) skip_unreached();
  const at::Tensor& gradient = which.tensor.grad();
  if (!gradient.defined()) {
    throw RuntimeError(fmt::format(
        "DataParallel: a hook removed the gradient of {} before it was averaged; expected hooks that leave it in place (read it after "
        "backward())",
        which.name));
  }
  if (gradient.requires_grad()) throw RuntimeError(fmt::format(kGraphOfGradient, which.name));
  for (StepExtension* extension : extensions_) extension->gradient(parameter);
  transport_->ready(parameter);
}

// The name of a parameter that has changed under gradients of this rank alone; empty when there is none.
std::string Synchronizer::stepped_by_itself() const {
  for (const auto& [parameter, trace] : local_) {
    if (trace_of(setup_.parameters[parameter].tensor) != trace) return setup_.parameters[parameter].name;
  }
  return "";
}

// Parameters that this backward will not come to block no bucket.
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
  has_unreported_failure_ = false;
  send(RankState::kWithData);
  complete();
  throw_if_failed();
}

void Synchronizer::on_backward_failed(const std::string& reason) {
  const std::lock_guard held(mutex_);
  if (!open_) return;
  try {
    open_->failure = reason;
    send(RankState::kFailed);
    complete();
    owes_exception_ = true;
  } catch (...) {  // backward() is throwing already; the next call says that the group is lost
  }
}

// A step that was to end with backward and did not: something threw among autograd's final callbacks.
void Synchronizer::lose_unfinished_step() {
  if (!open_ || !open_->is_backward_over || !setup_.options.finish_with_backward) return;
  lose_group(RuntimeError("the gradients of the step did not arrive"));
}

void Synchronizer::finish() {
  const auto held = enter();
  lose_unfinished_step();
  const bool has_failed = std::exchange(has_unreported_failure_, false);
  if (!open_) {
    if (has_failed) throw_if_failed();
    if (setup_.options.finish_with_backward || !synchronizes_) return;
    begin_step();
  }
  send(RankState::kWithData);
  complete();
  has_unreported_failure_ = false;
  throw_if_failed();
}

// A handler may call it for a step that has failed already, and several times. An exception of its own that this rank has not abandoned a
// step for is another step's, if no gradient tells.
void Synchronizer::abandon(const std::string& reason, std::exception_ptr handled) {
  const auto held = enter();
  lose_unfinished_step();
  const bool is_in_handler = handled != nullptr;
  const bool is_another = is_in_handler && !is_error_of_a_step(handled) && handled != abandoned_for_;
  if (is_in_handler) abandoned_for_ = std::move(handled);
  if (!open_) {
    if (last_failure_ && !has_gradient_since_failure_) {
      if (!is_in_handler || std::exchange(owes_exception_, false) || !is_another) return;
    }
    begin_step();
  }
  if (!open_->failure) open_->failure = reason;
  send(RankState::kFailed);
  complete();
  owes_exception_ = false;
}

bool Synchronizer::take_part_without_data() {
  const auto held = lock();
  if (open_) throw RuntimeError("Join: the last step is not finished; expected finish_gradient_synchronization() after its backward");
  begin_step();
  forget_all_gradients();
  send(RankState::kWithoutData);
  complete();
  throw_if_failed();
  return had_data_;
}

// What a mirror cannot take over fails the step.
void Synchronizer::look_at_module() {
  auto* const mirror = dynamic_cast<MirrorModule*>(setup_.module);
  if (mirror == nullptr) return;
  try {
    mirror->look();
  } catch (const std::exception& error) {
    if (open_->failure) return;
    open_->error = std::current_exception();
    open_->failure = message_of(open_->error);
  }
}

// Everything that this rank adds to the step is under way afterwards.
void Synchronizer::send(RankState state) {
  wait_started_ = std::chrono::steady_clock::now();
  or_lose_group([&] {
    look_at_module();
    open_->parameters_changed = parameters_.has_changed();
    const bool buffers_changed = buffers_ && buffers_->look();
    if (state == RankState::kWithData) note_missing_gradients();
    if (state != RankState::kWithData) used_.assign(used_.size(), false);
    for (StepExtension* extension : extensions_) extension->sending();
    const std::exception_ptr error = transport_->send(open_->failure ? RankState::kFailed : state, [this] { return where(); });
    if (!open_->error) open_->error = error;
    for (const StepExtension* extension : extensions_) {
      if (!open_->error) open_->error = extension->objection();
    }
    if (open_->error && !open_->failure) open_->failure = message_of(open_->error);
    RankReport report;
    report.state = open_->failure ? RankState::kFailed : state;
    report.parameters_changed = open_->parameters_changed;
    report.buffers_changed = buffers_changed;
    report.suspects = open_->suspects;
    report.step = static_cast<uint64_t>(step_);
    report.identity = hash_of(setup_.options.name);
    note_what_is_compared();  // where no gradient has come
    report.checksum = checksum_.value_or(0);
    agreement_->launch(report, used_);
    if (buffers_) buffers_->launch(0);
  });
}

// A gradient that a step has left there (zeroed, perhaps) is none of this backward's.
bool Synchronizer::has_gradient(size_t parameter) const {
  if (transport_->is_placed(parameter)) return touched_[parameter];
  return setup_.parameters[parameter].tensor.grad().defined() && (touched_[parameter] || !transport_->is_adopted(parameter));
}

// Notes in the step which parameters this rank has used; unless it may, that it has not used all of them is a failure.
void Synchronizer::note_missing_gradients() {
  std::vector<std::string> missing;
  const auto note = [&](const NamedTensor& parameter) { missing.push_back(parameter.name); };
  for (size_t i = 0; i < used_.size(); ++i) {
    const NamedTensor& parameter = setup_.parameters[i];
    const bool has_own = has_gradient(i);
    used_[i] = has_own || used_[i] || parameter.tensor.grad().defined();
    if (!has_own && parameter.tensor.requires_grad()) note(parameter);
  }
  if (open_->parameters_changed) {  // of those that it does not know, and that have replaced others, perhaps
    missing.clear();
    for (const NamedTensor& parameter : trainable_parameters(*setup_.module)) {
      const auto known = std::ranges::find_if(setup_.parameters, [&](const auto& each) { return each.tensor.is_same(parameter.tensor); });
      const bool has = known == setup_.parameters.end() ? parameter.tensor.grad().defined()
                                                        : has_gradient(static_cast<size_t>(known - setup_.parameters.begin()));
      if (!has) note(parameter);
    }
  }
  if (missing.empty() || setup_.options.find_unused_parameters || open_->failure) return;
  open_->failure = fmt::format(
      "no gradient for {}; expected every trainable parameter to take part in the loss (or set "
      "find_unused_parameters)",
      fmt::join(missing, ", "));
}

void Synchronizer::complete() {
  const int64_t finished_before = steps_finished_;
  or_lose_group([&] {
    agreement_->wait([this] { return where(); });
    had_data_ = agreement_->ranks_with_data() > 0;
    const int first_failed = agreement_->first_failed();
    if (first_failed < setup_.group.size) {
      const std::string ours = first_line(open_->failure.value_or("")).substr(0, kLongestReason);
      const std::string reason = text_of_rank(setup_.control, ours, first_failed);
      fail({.rank = first_failed, .step = step_, .reason = reason}, open_->error);
      if (agreement_->any_parameters_changed()) take_up_changes();
    } else if (const std::optional<std::string> found = difference()) {
      const bool is_of_audit = !agreement_->are_checksums_equal();
      fail({.rank = 0, .step = step_, .reason = *found},
           is_of_audit ? std::make_exception_ptr(AuditError("DataParallel: " + *found)) : nullptr);
    } else if (std::optional<StepFailure> failure = finish_comm_hook()) {
      fail(std::move(*failure), open_->error);
    } else {
      succeed();
    }
    if (const int suspect = agreement_->first_that_suspects(); suspect < setup_.group.size && !suspect_) {
      suspect_ = suspect;
      compare_at_ = std::max(compare_at_ + patience_, step_ + 1);
    }
    exposed_wait_s_ = seconds_since(wait_started_);
    if (steps_finished_ > finished_before) {
      for (StepExtension* extension : extensions_) extension->ended(*agreement_);
    }
  });
  open_.reset();
  used_.assign(used_.size(), false);
  touched_.assign(touched_.size(), false);
  local_.clear();
  is_begun_ = false;
  checksum_.reset();
  ++step_;
  if (compares() && steps_finished_ > finished_before) note_buffers();
}

// Between ranks that have all come to the end of this step: of what it compares, and of their buffers. The same on every rank.
std::optional<std::string> Synchronizer::difference() {
  if (!agreement_->are_checksums_equal()) {
    std::string difference = audit_.explain(setup_.control, step_);
    // A rank that suspects may hold its own values only while it runs a backward of its own: then those of this one are equal.
    if (!difference.empty() || audit_.is_due(step_)) {
      if (difference.empty()) difference = fmt::format("audit before step {}: the ranks differed and no longer do", step_);
      const std::optional<int> suspect = std::exchange(suspect_, {});
      return suspect ? fmt::format("{}; on rank {} {}", difference, *suspect, text_of_rank(setup_.control, suspicion_, *suspect))
                     : difference;
    }
  }
  if (compares()) {
    audit_.note_equal(step_);
    if (suspect_) patience_ = std::min(2 * patience_, kMostPatience);
    suspect_.reset();
    compare_at_ = step_;
  }
  audited_buffers_.clear();
  if (!buffers_ || !agreement_->any_buffers_changed()) return std::nullopt;
  const std::string difference = difference_between_ranks(setup_.control, buffers_->lines());
  return difference.empty() ? std::nullopt : std::optional(difference);
}

// A communication hook may fail on one rank long after it was called: no rank uses its result before all have one.
std::optional<StepFailure> Synchronizer::finish_comm_hook() {
  if (!setup_.options.gradient_hook.comm_hook) return std::nullopt;
  open_->error = transport_->finish_comm_hook([this] { return where(); });
  ProcessGroup control = setup_.control;
  if (open_->error) control.timeout = kPatienceWithHook;
  const auto ranks = all_gather(control, {open_->error ? 1.0 : 0.0});
  const auto failed = std::ranges::find_if(ranks, [](const auto& rank) { return rank[0] != 0; });
  if (failed == ranks.end()) return std::nullopt;
  const auto rank = static_cast<int>(failed - ranks.begin());
  const std::string ours = open_->error ? message_of(open_->error).substr(0, kLongestReason) : "";
  return StepFailure{.rank = rank, .step = step_, .reason = text_of_rank(setup_.control, ours, rank)};
}

void Synchronizer::succeed() {
  const int root = agreement_->first_with_data();
  if (root == setup_.group.size) {  // the end of a Join: no rank had anything to send
    transport_->drop([this] { return where(); });
    for (StepExtension* extension : extensions_) extension->dropped();
    if (buffers_) buffers_->wait(/*keep=*/false);
    forget_failure();
    return forget_all_gradients();
  }
  if (agreement_->any_parameters_changed()) return renew();
  forget_failure();
  const bool is_first = !transport_->has_learned();
  receive_means(/*all=*/false);
  transport_->learn(root, agreement_->has_data(setup_.group.rank));
  for (StepExtension* extension : extensions_) extension->received(*agreement_, is_first);
  receive_buffers();
  ++steps_finished_;
}

void Synchronizer::forget_failure() {
  last_failure_.reset();
  last_error_ = nullptr;
}

void Synchronizer::receive_means(bool all) {
  std::vector<bool> wanted(used_.size());
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = agreement_->is_used(i) && setup_.parameters[i].tensor.requires_grad();
  // The buckets hold means over all ranks; wanted are those over the ranks that have data. What sharded has there are no sums yet.
  const double scale = setup_.options.strategy.shards ? 1 : static_cast<double>(setup_.group.size) / agreement_->ranks_with_data();
  transport_->receive(wanted, scale, all, [this] { return where(); });
}

// Rank 0's are under way; where it has no data they are of no use.
void Synchronizer::receive_buffers() {
  if (!buffers_) return;
  const int root = agreement_->first_with_data();
  const bool is_as_sent = root == 0 && !agreement_->any_buffers_changed();
  buffers_->wait(/*keep=*/is_as_sent);
  if (is_as_sent) return;
  if (buffers_->look()) buffers_->take_up();
  buffers_->launch(root);
  buffers_->wait(/*keep=*/true);
}

void Synchronizer::fail(StepFailure failure, std::exception_ptr error) {
  const bool is_even = is_comm_hook_even();
  if (is_even) transport_->drop([this] { return where(); });
  for (StepExtension* extension : extensions_) extension->dropped();
  if (buffers_) buffers_->wait(/*keep=*/false);
  forget_all_gradients();
  last_failure_ = std::move(failure);
  last_error_ = std::move(error);
  has_gradient_since_failure_ = false;
  has_unreported_failure_ = true;
  owes_exception_ = last_error_ != nullptr;
  if (is_even) return;
  try {
    give_up(setup_.group, fmt::format("the communication hook failed on rank {} while other ranks waited for what it was to send: {}",
                                      last_failure_->rank, last_failure_->reason));
  } catch (const GroupError& lost) {  // for the next step: this one has failed
    note_loss(lost.what());
  }
}

// Whether every rank has called the communication hook for as many buckets: what some have sent would wait for the others for ever.
bool Synchronizer::is_comm_hook_even() {
  if (!setup_.options.gradient_hook.comm_hook) return true;
  const auto ranks = all_gather(setup_.control, {static_cast<double>(transport_->comm_hook_calls())});
  return std::ranges::all_of(ranks, [&](const auto& rank) { return rank == ranks[0]; });
}

// For what looks at places a call is a step of a wrapper of its own.
Synchronizer::Call::Call(Synchronizer& synchronizer, std::string_view name)
    : synchronizer_(synchronizer), before_(*synchronizer.setup_.control.place) {
  constexpr int64_t kWrappers = int64_t{1} << 32;
  const auto number = static_cast<int64_t>(std::hash<std::string_view>{}(name) % static_cast<size_t>(kWrappers / 4));
  WaitPlace place;
  place.wrapper = -1 - before_.wrapper - number * kWrappers;
  place.step = ++synchronizer.calls_.try_emplace(std::string(name), -1).first->second;
  place.name = fmt::format("{} on {}", name, before_.name);
  synchronizer.setup_.group.place = synchronizer.setup_.control.place = place;
  note_step(synchronizer.setup_.control, place.wrapper, place.step);
}

Synchronizer::Call::~Call() {
  synchronizer_.setup_.group.place = synchronizer_.setup_.control.place = before_;
}

void Synchronizer::audit() {
  const auto held = enter();
  if (open_) throw RuntimeError("audit() called within a step; expected between steps");
  const Call call(*this, "audit()");
  const std::string difference = or_lose_group([&] {
    note_buffers();
    forget_buffers_that_moved();
    const auto ranks = gather_hashes(setup_.control, {audit_.checksum()});
    const bool are_equal = std::ranges::all_of(ranks, [&](const auto& rank) { return rank == ranks[0]; });
    return are_equal ? std::string() : audit_.explain(setup_.control, step_);
  });
  if (!difference.empty()) throw AuditError("DataParallel: " + difference);
  audit_.note_equal(step_);
}

void Synchronizer::audit_also(const void* owner, Audit::Tensors tensors) {
  const auto held = enter();
  audit_.add(owner, std::move(tensors));
}

void Synchronizer::forget_audited(const void* owner) {
  const auto held = lock();
  audit_.remove(owner);
}

DataParallelStats Synchronizer::stats() const {
  const std::lock_guard held(mutex_);
  DataParallelStats result{
      .tensors = {}, .buckets = transport_->finished_stats(), .exposed_wait_s = exposed_wait_s_, .steps = steps_finished_};
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

void Synchronizer::throw_if_failed() const {
  if (last_error_) std::rethrow_exception(last_error_);
  if (last_failure_) throw StepError(*last_failure_);
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
  lost_ = fmt::format("DataParallel: the process group was lost in step {}; create a new one: {}", step_, why);
}

void Synchronizer::throw_if_lost() const {
  if (lost_) throw GroupError(*lost_);
}

}  // namespace firkin
