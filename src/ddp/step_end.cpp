// The end of a step: sends the rest, lets ranks agree, and ends the step well on all of them or on none.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/across_ranks.h"
#include "synchronizer.h"

namespace firkin {
namespace {

constexpr size_t kLongestReason = 1000;  // in bytes
// Timeout once a communication hook has failed here: other ranks may wait for what it was to send next.
constexpr std::chrono::seconds kPatienceWithHook{10};

}  // namespace

// Lets a mirror read its module. If it throws, the step fails.
void Synchronizer::look_at_module() {
  auto* const mirror = dynamic_cast<MirrorModule*>(setup_.module);
  if (mirror == nullptr) return;
  try {
    mirror->look();
  } catch (const std::exception&) {
    if (!open_->failure) open_->fail_with(std::current_exception());
  }
}

// Sends everything that this rank still has to add to the step.
void Synchronizer::send(RankState state) {
  wait_started_ = std::chrono::steady_clock::now();
  or_lose_group([&] {
    look_at_module();
    open_->parameters_changed = parameters_.has_changed();
    const bool buffers_changed = buffers_ && buffers_->look();
    if (state == RankState::kWithData) note_missing_gradients();
    if (state != RankState::kWithData) used_.assign(used_.size(), false);
    open_->fail_with(transport_->send(open_->failure ? RankState::kFailed : state, [this] { return where(); }));
    check_extensions();
    RankReport report;
    report.state = open_->failure ? RankState::kFailed : state;
    report.parameters_changed = open_->parameters_changed;
    report.buffers_changed = buffers_changed;
    report.suspects = open_->suspects;
    for (const auto& [optimizer, steps] : optimizer_steps_) {
      report.optimizer_steps = std::min(std::max<uint64_t>(report.optimizer_steps, steps), kMostOptimizerSteps);
    }
    report.step = static_cast<uint64_t>(step_);
    report.identity = hash_of(setup_.options.name);
    note_first_gradient();  // in case there was none
    report.checksum = audit_.noted();
    agreement_->launch(report, used_);
    if (buffers_) buffers_->launch(0);
  });
}

void Synchronizer::check_extensions() {
  try {
    for (StepExtension* extension : extensions_) extension->check(std::nullopt);
  } catch (const std::exception&) {
    open_->fail_with(std::current_exception());
  }
}

// Whether the parameter got a gradient in this backward. One that a step has left there (perhaps zeroed) does not
// count.
bool Synchronizer::has_gradient(size_t parameter) const {
  if (transport_->is_placed(parameter)) return touched_[parameter];
  return setup_.parameters[parameter].tensor.grad().defined() && (touched_[parameter] || !transport_->is_adopted(parameter));
}

// Notes which parameters this rank has used in the step. It is a failure not to use all of them, unless that is
// allowed.
void Synchronizer::note_missing_gradients() {
  std::vector<std::string> missing;
  const auto note = [&](const NamedTensor& parameter) { missing.push_back(parameter.name); };
  for (size_t i = 0; i < used_.size(); ++i) {
    const NamedTensor& parameter = setup_.parameters[i];
    const bool has_own = has_gradient(i);
    const bool has_lost_it = transport_->is_counted(i) && !transport_->is_placed(i) && !parameter.tensor.grad().defined();
    if (has_lost_it && !open_->failure) open_->failure = removed_by_hook(parameter);
    used_[i] = has_own || used_[i] || parameter.tensor.grad().defined();
    if (!has_own && parameter.tensor.requires_grad()) note(parameter);
  }
  if (open_->parameters_changed) {  // parameters that are not known yet may have replaced others
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
      if (agreement_->any_parameters_changed()) apply_changes();
    } else if (const std::string found = difference_between_steps(); !found.empty()) {
      fail({.rank = 0, .step = step_, .reason = found}, std::make_exception_ptr(AuditError("DataParallel: " + found)));
    } else if (const std::string of_buffers = difference_of_buffers(); !of_buffers.empty()) {
      fail({.rank = 0, .step = step_, .reason = of_buffers}, nullptr);
    } else if (std::optional<StepFailure> failure = finish_comm_hook()) {
      fail(std::move(*failure), open_->error);
    } else {
      succeed();
    }
    audit_.note_suspicion(*agreement_, step_);
    began_ = transport_->started_at().host;
    ended_ = std::chrono::steady_clock::now();
    exposed_wait_s_ = std::chrono::duration<double>(ended_ - wait_started_).count();
  });
  open_.reset();
  used_.assign(used_.size(), false);
  touched_.assign(touched_.size(), false);
  audit_.note_end();
  is_begun_ = false;
  optimizer_steps_.clear();
  const bool is_good = steps_finished_ > finished_before;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->ended(*agreement_, is_good);
    if (const auto observer = observer_; observer && is_good) observer();  // a copy, because it may remove itself
  });
  ++step_;
  if (is_good && audit_.is_due(step_)) audit_.note_buffers(untouched_buffers());
}

// Evidence that ranks have parameters of different steps of the program, in the same text on every rank; empty if there
// is none. After a failed step, programs may go on in different ways.
std::string Synchronizer::difference_between_steps() {
  const std::string differ = failures_.failure() ? "" : agreement_->difference_of_optimizer_steps();
  if (differ.empty()) return audit_.difference(*agreement_, step_);
  return fmt::format(
      "audit before step {}: since the step before, the optimiser's steps are {}; expected as many on every rank: a rank whose loss "
      "depends on no parameter takes no part in that step, and has to call abandon_step()",
      step_, differ);
}

// How buffers differ between ranks, in the same text on every rank; empty if they do not. Called once all ranks are at
// the end of the step.
std::string Synchronizer::difference_of_buffers() {
  if (!buffers_ || !agreement_->any_buffers_changed()) return "";
  return difference_between_ranks(setup_.control, buffers_->lines());
}

// A communication hook may fail on one rank long after the call, so no rank uses its result before all ranks have one.
std::optional<StepFailure> Synchronizer::finish_comm_hook() {
  if (!setup_.reduction->may_fail_alone()) return std::nullopt;
  open_->error = transport_->finish_reductions([this] { return where(); });
  ProcessGroup control = setup_.control;
  if (open_->error) control.timeout = kPatienceWithHook;
  std::optional<std::string> ours;
  if (open_->error) ours = message_of(open_->error).substr(0, kLongestReason);
  const std::optional<RankProblem> first = first_problem(control, ours);
  if (!first) return std::nullopt;
  return StepFailure{.rank = first->rank, .step = step_, .reason = first->text};
}

void Synchronizer::succeed() {
  const int root = agreement_->first_with_data();
  if (root == setup_.group.size) {  // no rank had anything to send: join() ends
    transport_->drop([this] { return where(); });
    if (buffers_) buffers_->wait(/*keep=*/false);
    failures_.clear();
    return forget_all_gradients();
  }
  if (agreement_->any_parameters_changed()) return renew();
  failures_.clear();
  const bool is_first = !transport_->has_learned();
  receive_means(/*all=*/false);
  transport_->learn(root, agreement_->has_data(setup_.group.rank));
  for (StepExtension* extension : extensions_) extension->received(*agreement_, is_first);
  receive_buffers();
  ++steps_finished_;
}

void Synchronizer::receive_means(bool all) {
  std::vector<bool> wanted(used_.size());
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = agreement_->is_used(i) && setup_.parameters[i].tensor.requires_grad();
  // Buckets have means over all ranks, but gradients are to be means over the ranks with data.
  const double scale = static_cast<double>(setup_.group.size) / agreement_->ranks_with_data();
  transport_->receive(wanted, scale, all, [this] { return where(); });
}

// Rank 0's buffers are in flight; if it has no data, another rank's take their place.
void Synchronizer::receive_buffers() {
  if (!buffers_) return;
  const int root = agreement_->first_with_data();
  const bool is_as_sent = root == 0 && !agreement_->any_buffers_changed();
  buffers_->wait(/*keep=*/is_as_sent);
  if (is_as_sent) return;
  if (buffers_->look()) buffers_->adopt();
  buffers_->launch(root);
  buffers_->wait(/*keep=*/true);
}

void Synchronizer::fail(StepFailure failure, std::exception_ptr error) {
  const bool is_even = is_comm_hook_even();
  if (is_even) transport_->drop([this] { return where(); });
  if (buffers_) buffers_->wait(/*keep=*/false);
  forget_all_gradients();
  const std::string what = fmt::format("the communication hook failed on rank {} while other ranks waited for what it was to send: {}",
                                       failure.rank, failure.reason);
  failures_.note(std::move(failure), std::move(error));
  if (is_even) return;
  try {
    give_up(setup_.group, what);
  } catch (const GroupError& lost) {  // for the next step: this one has failed already
    note_loss(lost.what());
  }
}

// Whether every rank has called the communication hook for as many buckets. If not, what some have sent would wait for
// the others for ever.
bool Synchronizer::is_comm_hook_even() {
  if (!setup_.reduction->may_fail_alone()) return true;
  const auto ranks = all_gather(setup_.control, {static_cast<double>(setup_.reduction->started())});
  return std::ranges::all_of(ranks, [&](const auto& rank) { return rank == ranks[0]; });
}

}  // namespace firkin
