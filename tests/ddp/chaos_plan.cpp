#include "chaos_plan.h"

#include <random>

#include "firkin/ddp/options.h"

namespace firkin {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  int between(int first, int last) { return first + below(last - first + 1); }
  bool one_in(int n) { return below(n) == 0; }

  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[static_cast<size_t>(random_() % i)]);
  }

  // A random subset of `all`, not empty.
  std::vector<int> some_of(std::vector<int> all) {
    shuffle(all);
    all.resize(static_cast<size_t>(between(1, static_cast<int>(all.size()))));
    std::ranges::sort(all);
    return all;
  }

 private:
  std::mt19937_64 random_;
};

ChaosModelSpec draw_model(Draw& draw) {
  ChaosModelSpec spec;
  spec.width = draw.between(2, 9);
  spec.depth = draw.between(1, 4);
  spec.norm = draw.one_in(3);
  spec.tied = draw.one_in(3);
  spec.frozen = draw.one_in(3);
  spec.extra = draw.one_in(2);
  spec.mixed_dtypes = draw.one_in(3);
  if (draw.one_in(3)) spec.checkpointing = draw.one_in(4) ? Checkpointing::kSometimes : Checkpointing::kAlways;
  spec.shares_checkpointed = draw.one_in(2);
  spec.bank = draw.one_in(3);
  return spec;
}

void draw_options(Draw& draw, ChaosPlan& plan) {
  constexpr std::array kDrawn = {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded"};
  plan.strategy = kDrawn[static_cast<size_t>(draw.below(kDrawn.size()))];
  plan.cap.cap_bytes = draw.between(1, 4000);
  plan.cap.rule = draw.one_in(2) ? CapRule::kAtMost : CapRule::kCloseWhenFull;
  if (draw.one_in(2)) plan.cap.first_cap_bytes = draw.between(1, 500);
  plan.explicit_ready_order = draw.one_in(4);
  plan.find_unused_parameters = draw.one_in(3);
  plan.broadcast_buffers = !draw.one_in(4);
  plan.finish_with_backward = !draw.one_in(3);
  plan.compresses = draw.one_in(4);
  plan.adam = draw.one_in(2);
  constexpr std::array<int64_t, 6> kAudits = {0, 1, 2, 3, 5, 100};
  plan.modules = draw.one_in(4) ? 2 : 1;
  plan.audit_every = kAudits[static_cast<size_t>(draw.below(kAudits.size()))];
  if (draw.one_in(4)) plan.clip_norm = draw.one_in(2) ? 0.02 : 1.0;
  plan.clips_by_hand = !plan.clip_norm && draw.one_in(6);
  plan.keeps_gradients = draw.one_in(3);
  plan.abandons_in_handlers = draw.one_in(2);
  if (!find_strategy(plan.strategy).shards) return;
  plan.whole_parameters = draw.one_in(2);
  plan.compresses = false;
  plan.clips_by_hand = false;
}

// Within this many steps of its cause an audit finds a difference; longer intervals are not worth their steps.
constexpr int64_t kLongestDrift = 5;

// Under sharded every parameter is stepped on one rank: all ranks have what that has made of it.
bool may_drift(const ChaosPlan& plan) {
  if (find_strategy(plan.strategy).shards) return false;
  const bool may_be_refused = plan.model.checkpointing == Checkpointing::kSometimes;
  return plan.audit_every > 0 && plan.audit_every <= kLongestDrift && !may_be_refused;
}

// A plan or an order that was given speaks of the parameters that there were.
bool may_change_parameters(const ChaosPlan& plan) {
  return find_strategy(plan.strategy).grouping != Grouping::kPlan && !plan.explicit_ready_order;
}

// Ranks disagree about what they train, and every rank hears it.
bool is_refused(const ChaosChange& change, int ranks) {
  return change.ranks.size() < static_cast<size_t>(ranks) || (change.brings_values() && !change.same_values && !change.tells);
}

// More than one.
bool have_equally_many_micro_batches(const ChaosStep& step) {
  const int micro_batches = step.actions[0]->micro_batches;
  return micro_batches > 1 && std::ranges::all_of(step.actions, [micro_batches](const auto& action) {
           return action->micro_batches == micro_batches && !action->without_backward;
         });
}

// Draws the steps of one module, and what must come of them.
class StepDraw {
 public:
  // steps: of all modules so far.
  StepDraw(Draw& draw, const ChaosPlan& plan, int module, int& steps) : draw_(draw), plan_(plan), module_(module), steps_(steps) {
    for (int i = 0; i < plan.model.depth; ++i) layers_.push_back(fmt::format("layer{}", i));
    if (plan.model.frozen && plan.model.depth > 1) frozen_.push_back("layer1.weight");
  }

  // with_data: the ranks that have a batch, in a join section or outside.
  ChaosStep step(const std::vector<int>& with_data, bool joins, std::optional<ChaosChange> change = {}) {
    ChaosStep step;
    step.number = steps_++;
    step.module = module_;
    step.change = std::move(change);
    const int zero = draw_.below(6);
    step.zero_grad = zero < 3 ? ZeroGrad::kToNone : zero < 5 ? ZeroGrad::kInPlace : ZeroGrad::kNever;
    step.actions.resize(static_cast<size_t>(plan_.ranks));
    const bool alike = draw_.one_in(2);  // the same micro-batches on every rank
    const ChaosAction shared = action();
    for (const int rank : with_data) {
      ChaosAction& mine = step.actions[static_cast<size_t>(rank)].emplace(action());
      if (alike) mine.micro_batches = shared.micro_batches;
    }
    if (!step.change || !is_refused(*step.change, plan_.ranks)) {
      choose_users_of_extra(step, with_data);
      if (!joins) choose_ranks_without_backward(step, with_data);
      choose_faults(step, with_data);
    }
    foretell(step);
    step.sets_bank = plan_.model.bank && !joins && draw_.one_in(2);
    step.halves_weight = !joins && !step.change && step.outcome == ChaosOutcome::kSucceeds && have_equally_many_micro_batches(step);
    if (step.halves_weight) step.knows_mean = false;
    last_may_have_failed_ = step.outcome != ChaosOutcome::kSucceeds;
    return step;
  }

  // A step in which nothing happens.
  ChaosStep plain_step(ChaosOutcome outcome) {
    ChaosStep step;
    step.number = steps_++;
    step.module = module_;
    step.outcome = outcome;
    step.actions.assign(static_cast<size_t>(plan_.ranks), ChaosAction{});
    step.reasons.resize(static_cast<size_t>(plan_.ranks));
    last_may_have_failed_ = false;
    return step;
  }

  // What may happen to the parameters now. Ranks without data notice nothing by themselves: before a join section all are told. Under
  // sharded always: an untold step fails.
  ChaosChange change(bool in_join) {
    ChaosChange change;
    choose_parameter(change);
    change.tells = in_join || draw_.one_in(2) || find_strategy(plan_.strategy).shards;
    for (int rank = 0; rank < plan_.ranks; ++rank) change.ranks.push_back(rank);
    if (change.brings_values()) {
      change.same_values = draw_.one_in(2);
    } else if (!change.tells && draw_.one_in(3)) {
      change.ranks = draw_.some_of(change.ranks);
    }
    return change;
  }

 private:
  // A thawed or frozen parameter, or a layer. Keeps the books of what there is.
  void choose_parameter(ChaosChange& change) {
    const int kind = draw_.below(4);
    const std::string& layer = layers_[static_cast<size_t>(draw_.below(static_cast<int>(layers_.size())))];
    if (kind == 0) {
      change.kind = ChaosChangeKind::kAdd;
      change.name = fmt::format("added{}", added_++);
      layers_.push_back(change.name);
    } else if (kind == 1 && layer.starts_with("layer")) {
      change.kind = ChaosChangeKind::kReplace;
      change.name = layer;
      std::erase_if(frozen_, [&layer](const std::string& name) { return name.starts_with(layer + "."); });
    } else {
      change.name = layer + (draw_.one_in(2) ? ".weight" : ".bias");
      if (!frozen_.empty() && draw_.one_in(2)) change.name = frozen_[static_cast<size_t>(draw_.below(static_cast<int>(frozen_.size())))];
      const bool thaws = std::erase(frozen_, change.name) > 0;
      change.kind = thaws ? ChaosChangeKind::kThaw : ChaosChangeKind::kFreeze;
      if (!thaws) frozen_.push_back(change.name);
    }
  }

  ChaosAction action() {
    ChaosAction action;
    if (draw_.one_in(3)) action.micro_batches = draw_.between(2, 3);
    action.by_setter = draw_.one_in(2);
    action.finishes_twice = draw_.one_in(3);
    action.abandons = draw_.below(3);
    action.pass.checkpoints = plan_.model.checkpointing != Checkpointing::kSometimes || draw_.one_in(2);
    return action;
  }

  void choose_users_of_extra(ChaosStep& step, const std::vector<int>& with_data) {
    if (!plan_.model.extra) return;
    const bool leaves_out = plan_.find_unused_parameters ? draw_.one_in(2) : draw_.one_in(8);
    if (!leaves_out) return;
    for (const int rank : draw_.some_of(with_data)) step.actions[static_cast<size_t>(rank)]->pass.uses_extra = false;
  }

  // Only where finish_gradient_synchronization() is what completes steps, and after a good one: elsewhere it would do nothing.
  void choose_ranks_without_backward(ChaosStep& step, const std::vector<int>& with_data) {
    if (plan_.finish_with_backward || last_may_have_failed_ || with_data.size() < 2 || !draw_.one_in(6)) return;
    std::vector<int> ranks = draw_.some_of(with_data);
    if (ranks.size() == with_data.size()) ranks.pop_back();
    for (const int rank : ranks) step.actions[static_cast<size_t>(rank)]->without_backward = true;
  }

  void choose_faults(ChaosStep& step, const std::vector<int>& with_data) {
    const int kind = draw_.below(11);
    if (kind >= 5) return;
    for (const int rank : draw_.some_of(with_data)) {
      ChaosAction& action = *step.actions[static_cast<size_t>(rank)];
      action.without_backward = false;
      constexpr std::array kFaults = {ChaosFault::kForward, ChaosFault::kBackward, ChaosFault::kBackward, ChaosFault::kAfterBackward};
      const ChaosFault any = kFaults[static_cast<size_t>(draw_.below(kFaults.size()))];
      add_fault(action, kind == 0 ? ChaosFault::kAbandon : kind == 1 && draw_.one_in(2) ? ChaosFault::kCreateGraph : any);
    }
  }

  void add_fault(ChaosAction& action, ChaosFault fault) {
    if (fault == ChaosFault::kAfterBackward && plan_.finish_with_backward) fault = ChaosFault::kBackward;
    action.fault = fault;
    action.fault_micro = fault == ChaosFault::kCreateGraph ? action.micro_batches - 1 : draw_.below(action.micro_batches);
    if (fault == ChaosFault::kBackward) {
      action.pass.throw_at = draw_.between(0, plan_.model.depth + 1);
      if (plan_.model.checkpointing != Checkpointing::kNone && draw_.one_in(3)) action.pass.throw_at = kThrowInCheckpoint;
    }
    if (last_may_have_failed_ && !plan_.abandons_in_handlers) make_abandoning_effective(action);
    if (needs_abandon(action)) action.abandons = draw_.between(1, 2);
  }

  // Outside of a handler abandon_step() does nothing when the last step failed and no gradient has come since (one that no_sync() kept on
  // this rank counts): it cannot know that it is called for the next step already, and then the other ranks wait. Lets a gradient come
  // first.
  void make_abandoning_effective(ChaosAction& action) const {
    if (action.fault == ChaosFault::kAbandon) action.fault = ChaosFault::kForward;
    if (action.fault == ChaosFault::kForward) {
      action.micro_batches = std::max(action.micro_batches, 2);
      action.fault_micro = std::max(action.fault_micro, 1);
    }
    if (action.pass.throw_at == plan_.model.depth + 1 && action.fault_micro == 0) action.pass.throw_at = plan_.model.depth;
  }

  // DataParallel sees a backward that throws only when it synchronises, and when a gradient has come.
  bool needs_abandon(const ChaosAction& action) const {
    if (action.fault == ChaosFault::kCreateGraph) return false;
    if (action.fault != ChaosFault::kBackward) return true;
    return action.fault_micro < action.micro_batches - 1 || action.pass.throw_at == plan_.model.depth + 1;
  }

  // What must come of the step.
  void foretell(ChaosStep& step) const {
    bool throws = false;
    std::vector<int> without_gradient;
    step.reasons.resize(static_cast<size_t>(plan_.ranks));
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const auto& action = step.actions[static_cast<size_t>(rank)];
      if (!action) continue;
      const bool lacks = action->without_backward || (plan_.model.extra && !action->pass.uses_extra);
      if (lacks) without_gradient.push_back(rank);
      if (action->fault != ChaosFault::kNone) throws = true;
      if (action->fault == ChaosFault::kCreateGraph && !lacks) step.reasons[static_cast<size_t>(rank)] = "create_graph";
      if (action->fault != ChaosFault::kNone || (lacks && !plan_.find_unused_parameters)) step.culprits.push_back(rank);
    }
    // Under ordered a rank has only those of the last step's gradients that did not arrive behind it: what is added to then is its own
    // affair. Under sharded it has none.
    const bool keeps_all = find_strategy(plan_.strategy).wait != Wait::kAtFirstUse;
    step.knows_mean = step.zero_grad != ZeroGrad::kNever || (keeps_all && without_gradient.empty());
    const bool lacks = !without_gradient.empty() && !plan_.find_unused_parameters;
    if (throws || lacks) {
      step.outcome = ChaosOutcome::kFails;
    } else if (plan_.model.checkpointing == Checkpointing::kSometimes) {
      step.outcome = ChaosOutcome::kEither;
    }
    const bool is_change_refused = step.change && is_refused(*step.change, plan_.ranks);
    if (is_change_refused) {
      step.outcome = ChaosOutcome::kFails;
      step.culprits.clear();
      step.reasons.assign(step.reasons.size(), step.change->name);
    }
    // How often a parameter gets a gradient varies: that may be refused, wherever it is noticed.
    if (plan_.model.checkpointing == Checkpointing::kSometimes) {
      step.culprits.clear();
      step.reasons.assign(step.reasons.size(), "");
    }
  }

  Draw& draw_;
  const ChaosPlan& plan_;
  int module_ = 0;
  int& steps_;
  bool last_may_have_failed_ = false;
  std::vector<std::string> layers_;  // whose parameters may change: all but the last one, so that a gradient always comes
  std::vector<std::string> frozen_;
  int added_ = 0;
};

std::vector<int> ranks_with_more_than(int batches, const std::vector<int>& batches_of_rank) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < batches_of_rank.size(); ++rank) {
    if (batches_of_rank[rank] > batches) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

ChaosSection draw_drift(Draw& draw, StepDraw& steps, const ChaosPlan& plan) {
  ChaosSection section;
  section.drifting_rank = draw.below(plan.ranks);
  for (int64_t i = 0; i <= plan.audit_every; ++i) section.steps.push_back(steps.plain_step(ChaosOutcome::kDrifts));
  section.steps.push_back(steps.plain_step(ChaosOutcome::kSucceeds));
  return section;
}

ChaosSection draw_section(Draw& draw, StepDraw& steps, const ChaosPlan& plan) {
  if (may_drift(plan) && draw.one_in(8)) return draw_drift(draw, steps, plan);
  ChaosSection section;
  section.joins = draw.one_in(4);
  std::vector<int> batches(static_cast<size_t>(plan.ranks), 1);
  if (section.joins) {
    for (int& count : batches) count = draw.below(4);
  }
  for (int i = 0; i < *std::ranges::max_element(batches); ++i) {
    std::optional<ChaosChange> change;
    if (i == 0 && may_change_parameters(plan) && draw.one_in(3)) change = steps.change(section.joins);
    section.steps.push_back(steps.step(ranks_with_more_than(i, batches), section.joins, change));
  }
  return section;
}

}  // namespace

ChaosPlan draw_chaos_plan(uint64_t seed) {
  Draw draw(seed);
  ChaosPlan plan;
  plan.seed = seed;
  plan.ranks = draw.between(2, 4);
  plan.model = draw_model(draw);
  draw_options(draw, plan);
  int drawn = 0;
  std::vector<StepDraw> steps;
  for (int module = 0; module < plan.modules; ++module) steps.emplace_back(draw, plan, module, drawn);
  const int sections = draw.between(3, 8) * plan.modules;
  for (int i = 0; i < sections; ++i) {
    const int module = draw.below(plan.modules);
    plan.sections.push_back(draw_section(draw, steps[static_cast<size_t>(module)], plan));
    plan.sections.back().module = module;
  }
  return plan;
}

BucketPlan draw_bucket_plan(uint64_t seed, const std::vector<at::ScalarType>& dtypes, const std::vector<int64_t>& ready_order) {
  Draw draw(seed);
  BucketPlan plan;
  std::optional<at::ScalarType> current;
  for (size_t position = 0; position < ready_order.size(); ++position) {
    const at::ScalarType dtype = dtypes[static_cast<size_t>(ready_order[position])];
    if (current != dtype || draw.one_in(3)) plan.buckets.push_back({static_cast<int64_t>(position), 0});
    current = dtype;
    ++plan.buckets.back().count;
  }
  if (draw.one_in(2)) return plan;
  plan.launch_order.resize(plan.buckets.size());
  std::iota(plan.launch_order.begin(), plan.launch_order.end(), 0);
  draw.shuffle(plan.launch_order);
  return plan;
}

std::vector<int64_t> draw_ready_order(uint64_t seed, size_t parameters) {
  std::vector<int64_t> order(parameters);
  std::iota(order.begin(), order.end(), 0);
  Draw(seed).shuffle(order);
  return order;
}

}  // namespace firkin
