// The end of a step: sends the rest, lets ranks agree, and ends the step well on all of them or on none.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/across_ranks.h"
#include "protocol.h"

namespace firkin {
namespace {

constexpr size_t kLongestReason = 1000;  // in bytes
// Timeout of the agreement on reductions once a communication hook has failed on this rank: other ranks may wait for
// what the hook was to send next, and not come.
constexpr std::chrono::seconds kPatienceWithHook{10};

// What `work` throws; null if it throws nothing.
template <typename Work>
std::exception_ptr thrown_by(Work work) {
  try {
    work();
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

// Whether every rank has started as many reductions. If not, those that only some have started never arrive.
// Collective.
bool are_reductions_even(const StepSetup& setup) {
  if (!setup.reduction->may_fail_alone()) return true;
  const auto ranks = all_gather(setup.control, {static_cast<double>(setup.reduction->started())});
  return std::ranges::all_of(ranks, [&](const auto& rank) { return rank == ranks[0]; });
}

}  // namespace

// Sends everything that this rank still has to add to the step.
void StepProtocol::send(RankState state) {
  open_->wait_started = std::chrono::steady_clock::now();
  or_lose_group([&] {
    const std::exception_ptr unreadable = thrown_by([this] { follower_.read_module(); });
    if (!open_->failure) open_->fail_with(unreadable);
    open_->has_other_parameters = follower_.has_other_parameters();
    const bool has_other_buffers = follower_.read_buffers();
    if (state == RankState::kWithData) {
      const std::optional<std::string> missing = used_.record_used(setup_, *pipe_, open_->has_other_parameters);
      if (!open_->failure) open_->failure = missing;
    } else {
      used_.use_none();
    }
    auto rest = GradientPipe::Rest::kAnything;
    if (!open_->failure && state == RankState::kWithData) rest = GradientPipe::Rest::kGradients;
    if (!open_->failure && state == RankState::kWithoutData) rest = GradientPipe::Rest::kZeros;
    open_->fail_with(pipe_->send(rest, [this] { return where(); }));
    open_->fail_with(thrown_by([this] {
      for (StepExtension* extension : extensions_) extension->check(std::nullopt);
    }));
    take_checksum_if_due();  // here, if no gradient has come
    RankReport ours = report(state);
    ours.buffers_changed = has_other_buffers;
    agreement_->launch(ours, used_.used());
    follower_.send_buffers();
  });
}

RankReport StepProtocol::report(RankState state) const {
  RankReport ours;
  ours.state = open_->failure ? RankState::kFailed : state;
  ours.parameters_changed = open_->has_other_parameters;
  ours.suspects = open_->suspects;
  ours.optimizer_steps = std::min(optimizer_steps_.most(), kMostOptimizerSteps);
  ours.step = static_cast<uint64_t>(step_);
  ours.identity = hash_of(setup_.options.name);
  ours.checksum = audit_.checksum();
  return ours;
}

// Returns whether any rank had data.
bool StepProtocol::end_step() {
  const int64_t finished_before = steps_finished();
  bool any_rank_had_data = false;
  or_lose_group([&] {
    agreement_->wait([this] { return where(); });
    any_rank_had_data = agreement_->ranks_with_data() > 0;  // before other parameters bring another agreement
    end_as_reported();
    audit_.plan_comparison(*agreement_, step_);
    stats_.began = pipe_->started_at().host;
    stats_.ended = std::chrono::steady_clock::now();
    stats_.exposed_wait_s = std::chrono::duration<double>(stats_.ended - open_->wait_started).count();
  });
  open_.reset();
  used_.end_step();
  audit_.end_step();
  has_gradient_arrived_ = false;
  optimizer_steps_.clear();
  const bool is_good = steps_finished() > finished_before;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->ended(*agreement_, is_good);
    if (const auto observer = observer_; observer && is_good) observer();  // a copy, because it may remove itself
  });
  ++step_;
  if (is_good && audit_.is_due(step_)) audit_.record_buffers(follower_.untouched_buffers());
  return any_rank_had_data;
}

// Ends the step as every rank does by what the ranks have reported: well, with an error, or with other parameters.
void StepProtocol::end_as_reported() {
  const int first_failed = agreement_->first_failed();
  if (first_failed < setup_.group.size) {
    const std::string ours = first_line(open_->failure.value_or("")).substr(0, kLongestReason);
    const std::string reason = text_of_rank(setup_.control, ours, first_failed);
    fail({.rank = first_failed, .step = step_, .reason = reason}, open_->error);
    if (agreement_->any_parameters_changed()) follow_between_steps();
    return;
  }
  if (const std::string found = difference_between_steps(); !found.empty()) {
    return fail({.rank = 0, .step = step_, .reason = found}, std::make_exception_ptr(AuditError("DataParallel: " + found)));
  }
  const std::string of_buffers = agreement_->any_buffers_changed() ? follower_.difference_of_buffers() : "";
  if (!of_buffers.empty()) return fail({.rank = 0, .step = step_, .reason = of_buffers}, nullptr);
  if (std::optional<StepFailure> failure = agree_on_reductions()) return fail(std::move(*failure), open_->error);
  succeed();
}

// What shows that ranks have parameters of different steps of the program, in the same text on every rank; empty if
// nothing does. See Note [Counted optimizer steps]. After a failed step the counts may differ: each program goes on in
// its own way.
std::string StepProtocol::difference_between_steps() {
  const std::string differ = failures_.failure() ? "" : agreement_->difference_of_optimizer_steps();
  if (differ.empty()) return audit_.difference(*agreement_, step_);
  return fmt::format(
      "audit before step {}: since the step before, the optimiser's steps are {}; expected as many on every rank: a rank whose loss "
      "depends on no parameter takes no part in that step, and has to call abandon_step()",
      step_, differ);
}

// Returns the first rank's failure to make a sum; none if all ranks have all sums. No rank may use a sum before that: a
// communication hook may fail on one rank alone, long after the call.
std::optional<StepFailure> StepProtocol::agree_on_reductions() {
  if (!setup_.reduction->may_fail_alone()) return std::nullopt;
  open_->error = pipe_->finish_reductions([this] { return where(); });
  ProcessGroup control = setup_.control;
  if (open_->error) control.timeout = kPatienceWithHook;
  std::optional<std::string> ours;
  if (open_->error) ours = message_of(open_->error).substr(0, kLongestReason);
  const std::optional<RankProblem> first = first_problem(control, ours);
  if (!first) return std::nullopt;
  return StepFailure{.rank = first->rank, .step = step_, .reason = first->text};
}

void StepProtocol::succeed() {
  const int root = agreement_->first_with_data();
  if (root == setup_.group.size) {  // no rank has data: every join() ends
    pipe_->drop([this] { return where(); });
    follower_.drop_buffers();
    failures_.clear();
    return follower_.forget_gradients();
  }
  if (agreement_->any_parameters_changed()) return renew();
  failures_.clear();
  const bool is_first = !pipe_->has_learned();
  receive_means(/*all=*/false);
  pipe_->learn(root, agreement_->has_data(setup_.group.rank));
  for (StepExtension* extension : extensions_) extension->received(*agreement_, is_first);
  follower_.receive_buffers(root, agreement_->any_buffers_changed());
  ++stats_.steps;
}

void StepProtocol::receive_means(bool all) {
  std::vector<bool> wanted(setup_.parameters.size());
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = agreement_->is_used(i) && setup_.parameters[i].tensor.requires_grad();
  // Buckets have means over all ranks, but gradients are to be means over the ranks with data.
  const double scale = static_cast<double>(setup_.group.size) / agreement_->ranks_with_data();
  pipe_->receive(wanted, scale, all, [this] { return where(); });
}

void StepProtocol::fail(StepFailure failure, std::exception_ptr error) {
  const bool is_even = are_reductions_even(setup_);
  if (is_even) pipe_->drop([this] { return where(); });
  follower_.drop_buffers();
  follower_.forget_gradients();
  const std::string what = fmt::format("the communication hook failed on rank {} while other ranks waited for what it was to send: {}",
                                       failure.rank, failure.reason);
  failures_.set(std::move(failure), std::move(error));
  if (is_even) return;
  try {
    give_up(setup_.group, what);
  } catch (const GroupError& lost) {  // the next step throws it: this one has failed already
    set_lost(lost.what());
  }
}

// Ends the step with the parameters that the module trains now.
void StepProtocol::renew() {
  const ModuleChange change = follower_.find_change();
  if (!change.refusal.empty()) return fail({.rank = 0, .step = step_, .reason = change.refusal}, nullptr);
  if (!change.delay.empty()) {
    follower_.equalize(change);
    fail({.rank = 0, .step = step_, .reason = change.delay}, nullptr);
    return follow(change.parameters);
  }
  failures_.clear();
  const int root = agreement_->first_with_data();
  receive_means(/*all=*/true);
  follower_.average_joined(change, agreement_->has_data(setup_.group.rank), agreement_->ranks_with_data());
  follower_.receive_buffers(root, agreement_->any_buffers_changed());
  follow(change.parameters);
  ++stats_.steps;
}

// Switches to other parameters, with new hooks and buckets. Gradients that are still in the old buckets keep the
// memory.
void StepProtocol::follow(std::vector<NamedTensor> parameters) {
  const std::vector<NamedTensor> before = setup_.parameters;
  AdoptedGradients adopted = pipe_->release();
  try {
    follower_.follow(std::move(parameters));
    prepare_steps(std::move(adopted));
  } catch (...) {  // the group is lost, but stats() may still be called
    setup_.parameters = before;
    throw;
  }
  for (StepExtension* extension : extensions_) extension->renewed(*pipe_);
  follower_.add_hooks();
}

// Makes all that depends on the setup's parameters. adopted: from release() of the pipe before.
void StepProtocol::prepare_steps(AdoptedGradients adopted) {
  audit_.renew();
  has_gradient_arrived_ = false;
  agreement_.emplace(setup_.control, setup_.options.find_unused_parameters ? setup_.parameters.size() : 0);
  used_ = UsedParameters(setup_.parameters.size());
  pipe_ = std::make_unique<GradientPipe>(setup_, std::move(adopted));  // last, because it may throw
}

// Switches to the parameters that the module trains now. Returns why that is impossible; empty if it was possible.
std::string StepProtocol::follow_between_steps() {
  const ModuleChange change = follower_.find_change();
  if (!change.refusal.empty()) return change.refusal;
  follower_.equalize(change);
  follow(change.parameters);
  return "";
}

void StepProtocol::parameters_changed() {
  const auto held = enter();
  if (open_) throw RuntimeError("parameters_changed() called within a step; expected between steps");
  follower_.read_module();
  const WaitPlaces::Call call(places_, "parameters_changed()");
  const std::string objection = or_lose_group([&] { return follow_between_steps(); });
  if (!objection.empty()) throw RuntimeError("DataParallel: " + objection);
}

}  // namespace firkin
