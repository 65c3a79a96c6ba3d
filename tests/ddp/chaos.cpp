#include "chaos.h"

#include <c10/core/DeviceGuard.h>

#include "chaos_meeting.h"
#include "chaos_trainee.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace firkin {
namespace {

// One rank's thread: the training program that the plan describes.
class ChaosRank {
 public:
  ChaosRank(const ChaosPlan& plan, const ProcessGroup& group, ChaosMeeting& meeting) : plan_(plan), group_(group), meeting_(meeting) {
    for (int module = 0; module < plan.modules; ++module) trainees_.push_back(std::make_unique<ChaosTrainee>(plan, module, group));
  }

  // The whole sequence. Throws ChaosStop when the ranks disagree, and whatever nobody expected.
  void run() {
    for (const ChaosSection& section : plan_.sections) {
      if (section.steps.empty()) continue;
      const ChaosStep& first = section.steps[0];
      if (first.change) {
        if (changes(*first.change)) trainee(section.module).change(*first.change, first.number);
        if (first.change->tells) trainee(section.module).ddp().parameters_changed();
      }
      if (section.joins) {
        run_joined(section);
      } else if (section.drifting_rank) {
        run_drift(section);
      } else {
        for (const ChaosStep& step : section.steps) run_step(step);
      }
    }
  }

 private:
  // What became of this rank's part of a step.
  struct Fate {
    std::string error;  // empty: all is well
    bool own_fault = false;
    bool audited = false;
    std::exception_ptr exception = {};  // that of `error`, if it is this rank's own
  };

  ChaosTrainee& trainee(int module) { return *trainees_[static_cast<size_t>(module)]; }

  bool changes(const ChaosChange& change) const { return std::ranges::count(change.ranks, group_.rank) > 0; }

  void run_joined(const ChaosSection& section) {
    ChaosTrainee& self = trainee(section.module);
    size_t next = 0;
    while (next < section.steps.size() && section.steps[next].actions[static_cast<size_t>(group_.rank)]) run_step(section.steps[next++]);

    std::optional<StepFailure> failure_before = self.ddp().last_failure();
    const auto meet_after_step_of_others = [&](const std::string& error) {
      if (next == section.steps.size()) throw std::logic_error("join: a step in which no rank has a batch: " + error);
      ChaosReport report = report_on(section.steps[next++], error.empty());
      report.error = error;
      report.failure_before = std::exchange(failure_before, report.last_failure);
      meet(std::move(report));
    };
    for (bool ended = false; !ended;) {
      try {
        self.ddp().join([&] {
          self.step_optimizer(section.steps[next].number);
          meet_after_step_of_others("");
        });
        ended = true;
      } catch (const StepError& error) {
        meet_after_step_of_others(error.what());
      }
    }
    ChaosReport report;
    report.where = fmt::format("the join section that {} steps were expected in, {} came", section.steps.size(), next);
    report.after_join = true;
    report.last_failure = self.ddp().last_failure();
    report.parameters = copies(self.model().parameters());
    report.gradients = self.gradients();
    meet(std::move(report));
  }

  // From the first optimiser's step on, parameters differ.
  void run_drift(const ChaosSection& section) {
    constexpr double kOtherRate = 2;  // and exactly back
    ChaosTrainee& self = trainee(section.module);
    const Tensors saved = self.save();
    if (group_.rank == section.drifting_rank) self.multiply_rate(kOtherRate);
    bool is_found = false;
    for (size_t i = 0; i + 1 < section.steps.size() && !is_found; ++i) is_found = run_step(section.steps[i]);
    if (!is_found)
      throw std::logic_error(fmt::format("no AuditError {} steps after rank {} began to drift", plan_.audit_every, *section.drifting_rank));
    if (group_.rank == section.drifting_rank) self.multiply_rate(1 / kOtherRate);
    self.restore(saved);
    run_step(section.steps.back());
  }

  // Returns whether an audit ended it.
  bool run_step(const ChaosStep& step) {
    ChaosTrainee& self = trainee(step.module);
    const ChaosAction& action = *step.actions[static_cast<size_t>(group_.rank)];
    self.zero_gradients(step.zero_grad);
    if (step.sets_bank) self.model().set_bank(1 + step.number % 3, 10 * step.number + group_.rank);
    const std::optional<StepFailure> failure_before = self.ddp().last_failure();
    const Tensors before = self.gradients();
    Tensors alone;
    const bool waits_in_forward = find_strategy(plan_.strategy).wait == Wait::kAtFirstUse;
    if (step.outcome != ChaosOutcome::kFails && !waits_in_forward) alone = self.gradients_alone(step, action);
    const Fate fate = attempt(step, action);
    const bool succeeded = fate.error.empty();
    if (succeeded) {
      if (waits_in_forward) alone = self.gradients_alone(step, action);  // only now the parameters are complete that forward has used
      self.step_optimizer(step.number);
    } else {
      recover(step, action, fate);
      self.ddp().drain();
    }
    self.check_kept_gradients();
    ChaosReport report = report_on(step, succeeded);
    if (succeeded && self.leaves_late(step.number)) alone.clear();
    report.error = fate.error;
    report.failure_before = failure_before;
    report.before = before;
    report.alone = std::move(alone);
    if (step.change && !changes(*step.change)) self.change(*step.change, step.number);  // and now all have
    meet(std::move(report));
    return fate.audited;
  }

  Fate attempt(const ChaosStep& step, const ChaosAction& action) {
    try {
      train(step, action);
    } catch (const OnPurpose& thrown) {
      return {.error = thrown.what(), .own_fault = true, .exception = std::current_exception()};
    } catch (const StepError& failed) {
      if (trainee(step.module).ddp().last_failure() != failed.failure()) {
        throw std::logic_error("last_failure() is not what was thrown: " + std::string(failed.what()));
      }
      return {.error = failed.what()};
    } catch (const AuditError& differs) {
      if (step.outcome != ChaosOutcome::kDrifts) throw;
      return {.error = differs.what(), .audited = true};
    } catch (const RuntimeError& refused) {
      if (!may_be_refused(action, refused.what())) throw;
      return {.error = refused.what(), .exception = std::current_exception()};
    }
    return {};
  }

  // What throws on this rank otherwise than as a StepError: a parameter that gets more gradients than in the steps before, where the model
  // varies, and a graph.
  bool may_be_refused(const ChaosAction& action, const std::string& what) const {
    if (action.fault == ChaosFault::kCreateGraph && what.find("create_graph") != std::string::npos) return true;
    return plan_.model.checkpointing == Checkpointing::kSometimes && what.find("more gradients than") != std::string::npos;
  }

  void train(const ChaosStep& step, const ChaosAction& action) {
    DataParallel& ddp = trainee(step.module).ddp();
    ddp.set_gradient_synchronization(true);
    if (action.fault == ChaosFault::kAbandon) throw OnPurpose(fault_text(step));
    for (int micro = 0; !action.without_backward && micro < action.micro_batches; ++micro) micro_batch(step, action, micro);
    if (action.fault == ChaosFault::kAfterBackward) throw OnPurpose(fault_text(step));
    if (!plan_.finish_with_backward || action.finishes_twice) ddp.finish_gradient_synchronization();
    if (action.fault != ChaosFault::kNone) throw std::logic_error("a step swallowed what must fail it");
  }

  void micro_batch(const ChaosStep& step, const ChaosAction& action, int micro) {
    ChaosTrainee& self = trainee(step.module);
    const bool synchronizes = micro == action.micro_batches - 1;
    const bool strikes = action.fault_micro == micro;
    const auto forward_and_backward = [&] {
      if (strikes && action.fault == ChaosFault::kForward) throw OnPurpose(fault_text(step));
      ChaosPass pass = action.pass;
      if (!strikes) pass.throw_at = kThrowNowhere;
      const bool creates_graph = strikes && action.fault == ChaosFault::kCreateGraph;
      self.model().loss(self.input(step.number, micro), pass, fault_text(step)).backward({}, /*retain_graph=*/creates_graph, creates_graph);
    };
    if (action.by_setter || synchronizes) {
      if (action.by_setter) self.ddp().set_gradient_synchronization(synchronizes);
      forward_and_backward();
    } else {
      const auto scope = self.ddp().no_sync();
      forward_and_backward();
    }
    if (step.halves_weight && !synchronizes) self.model().halve_weight();
  }

  // What the handler of an exception does: nothing, or abandon_step() once or more, whether that is needed or not.
  void recover(const ChaosStep& step, const ChaosAction& action, const Fate& fate) {
    DataParallel& ddp = trainee(step.module).ddp();
    const bool in_handler = plan_.abandons_in_handlers && fate.exception;
    const bool backward_told = fate.own_fault && action.fault == ChaosFault::kBackward && action.abandons == 0 && !in_handler;
    if (backward_told && !plan_.finish_with_backward && action.finishes_twice) finish_again(ddp);
    const auto abandon = [&] { ddp.abandon_step(fault_text(step)); };
    for (int i = 0; i < action.abandons && !in_handler; ++i) abandon();
    for (int i = 0; i < std::max(action.abandons, 1) && in_handler; ++i) {
      try {
        std::rethrow_exception(fate.exception);
      } catch (const std::exception&) {
        abandon();
      }
    }
    ddp.set_gradient_synchronization(true);
  }

  // Without noticing that backward threw: the same error again.
  static void finish_again(DataParallel& ddp) {
    std::optional<StepFailure> again;
    try {
      ddp.finish_gradient_synchronization();
    } catch (const StepError& error) {
      again = error.failure();
    }
    if (!again || again != ddp.last_failure())
      throw std::logic_error("finish_gradient_synchronization() after a backward that threw has no error, or another one");
  }

  std::string fault_text(const ChaosStep& step) const { return fmt::format("on purpose, rank {} in step {}", group_.rank, step.number); }

  ChaosReport report_on(const ChaosStep& step, bool succeeded) {
    ChaosTrainee& self = trainee(step.module);
    ChaosReport report;
    report.where = fmt::format("step {} of module {}", step.number, step.module);
    report.expected = step.outcome;
    report.culprits = step.culprits;
    report.reasons = step.reasons;
    report.knows_mean = step.knows_mean;
    report.tolerance = plan_.compresses ? 0.03 : 1e-4;
    report.last_failure = self.ddp().last_failure();
    if (plan_.broadcast_buffers) report.buffers = copies(self.model().buffers());
    if (succeeded && self.leaves_late(step.number)) {
      report.knows_mean = false;
      return report;
    }
    report.gradients = succeeded ? self.stepped_gradients() : self.gradients();
    if (step.outcome == ChaosOutcome::kDrifts) return report;
    report.parameters = copies(self.model().parameters());
    return report;
  }

  void meet(ChaosReport report) { meeting_.meet(group_.rank, std::move(report)); }

  const ChaosPlan& plan_;
  ProcessGroup group_;
  ChaosMeeting& meeting_;
  std::vector<std::unique_ptr<ChaosTrainee>> trainees_;
};

constexpr auto kTimeToReturn = std::chrono::seconds(30);  // beyond the collectives' timeout

// What the threads of a sequence share; a thread that hangs keeps it alive.
struct Sequence {
  ChaosPlan plan;
  MakeChaosGroup make_group;
  ChaosMeeting meeting{plan.ranks, kChaosTimeout + kTimeToReturn};
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
};

void run_rank(Sequence& sequence, int rank) {
  try {
    const ProcessGroup group = sequence.make_group(sequence.store, rank, sequence.plan.ranks);
    const c10::DeviceGuard guard(group.device);
    ChaosRank(sequence.plan, group, sequence.meeting).run();
  } catch (const ChaosStop&) {
    // Another rank, or the comparison, has said why.
  } catch (const std::exception& error) {
    sequence.meeting.fail(fmt::format("rank {}, unexpectedly: {}", rank, error.what()));
  } catch (...) {
    sequence.meeting.fail(fmt::format("rank {}, unexpectedly: no std::exception", rank));
  }
  sequence.meeting.leave();
}

}  // namespace

ProcessGroup chaos_group_on_cpu(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  return make_process_group(store, rank, size, {.device = c10::Device(c10::kCPU), .timeout = kChaosTimeout});
}

void for_each_chaos(std::optional<uint64_t> first, uint64_t count, const char* program, const std::function<void(uint64_t)>& body) {
  const auto number = [&](const char* name, uint64_t otherwise) {
    const char* text = first ? nullptr : std::getenv(name);
    return text == nullptr ? otherwise : std::stoull(text);
  };
  const uint64_t begin = number("FIRKIN_TEST_SEED", first.value_or(0)), end = begin + number("FIRKIN_CHAOS", count);
  fmt::print(stderr, "chaos from seed");
  for (uint64_t seed = begin; seed < end; ++seed) {
    fmt::print(stderr, " {}", seed);
    SCOPED_TRACE(fmt::format("again: FIRKIN_CHAOS=1 FIRKIN_TEST_SEED={} build/tests/{} --file=chaos_test.cpp --first", seed, program));
    body(seed);
  }
  fmt::print(stderr, "\n");
}

void expect_no_chaos(uint64_t seed, const MakeChaosGroup& make_group) {
  const std::shared_ptr<Sequence> sequence(new Sequence{.plan = draw_chaos_plan(seed), .make_group = make_group});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < sequence->plan.ranks; ++rank) {
    threads.emplace_back([sequence, rank] { run_rank(*sequence, rank); });
  }
  const bool all_left = sequence->meeting.wait_until_all_left();
  for (std::thread& thread : threads) all_left ? thread.join() : thread.detach();
  EXPECT_EQ(sequence->meeting.failures(), "") << sequence->plan.ranks << " ranks under " << sequence->plan.strategy;
}

}  // namespace firkin
