#include "chaos_rank.h"

#include <fmt/format.h>

#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/module_parameters.h"
#include "seeded.h"
#include "throw_in_backward.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int64_t kRows = 3;  // of a micro-batch

std::vector<at::Tensor> trainable_tensors(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : trainable_parameters(module)) tensors.push_back(parameter.tensor);
  return tensors;
}

// On the CPU, where all ranks may read them.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                                      : at::Tensor());
  }
  return copies;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return copies_of(gradients);
}

void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> source = from.parameters();
  std::vector<at::Tensor> target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const ChaosPlan& plan, const std::vector<at::Tensor>& parameters) {
  if (plan.adam) return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

}  // namespace

ChaosRank::ChaosRank(const ChaosPlan& plan, const ProcessGroup& group, ChaosMeeting& meeting)
    : plan_(plan),
      group_(group),
      meeting_(meeting),
      model_(std::make_shared<ChaosModel>(plan.model, group.device)),
      reference_(std::make_shared<ChaosModel>(plan.model, group.device)),
      trainable_(trainable_tensors(*model_)),
      reference_trainable_(trainable_tensors(*reference_)) {
  seed_parameters(*model_, 1000 * plan.seed + 100 * static_cast<uint64_t>(group.rank));  // rank 0's are broadcast
  ddp_ = std::make_unique<DataParallel>(*model_, group_, options());
  optimizer_ = make_optimizer(plan_, model_->parameters());
  overlapped_ = std::make_unique<OverlappedOptimizer>(*ddp_, *optimizer_);
}

// Under the strategy ordered, every other step leaves gradients on their way into what comes next, and has nothing to compare yet.
bool ChaosRank::leaves_late(int step) const {
  return find_strategy(plan_.strategy).wait == Wait::kAtFirstUse && step % 2 == 1;
}

void ChaosRank::step_optimizer(int step) {
  if (!leaves_late(step)) overlapped_->drain();
  overlapped_->step();
}

DataParallelOptions ChaosRank::options() const {
  DataParallelOptions options;
  options.strategy = find_strategy(plan_.strategy);
  options.cap = plan_.cap;
  options.finish_with_backward = plan_.finish_with_backward;
  options.find_unused_parameters = plan_.find_unused_parameters;
  options.broadcast_buffers = plan_.broadcast_buffers;
  if (plan_.compresses) options.gradient_hook = bf16_compression();
  std::vector<int64_t> order = draw_ready_order(plan_.seed, trainable_.size());
  if (plan_.explicit_ready_order) options.ready_order = order;
  if (options.strategy.grouping != Grouping::kPlan) return options;
  if (!plan_.explicit_ready_order) {
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  }
  std::vector<at::ScalarType> dtypes;
  for (const at::Tensor& parameter : trainable_) dtypes.push_back(parameter.scalar_type());
  options.plan = draw_bucket_plan(plan_.seed, dtypes, order);
  return options;
}

void ChaosRank::run() {
  for (const ChaosSection& section : plan_.sections) {
    if (section.joins) {
      run_joined(section);
      continue;
    }
    for (const ChaosStep& step : section.steps) run_step(step);
  }
}

void ChaosRank::run_joined(const ChaosSection& section) {
  auto join = ddp_->join();
  size_t next = 0;
  while (next < section.steps.size() && section.steps[next].actions[static_cast<size_t>(group_.rank)]) run_step(section.steps[next++]);

  std::optional<StepFailure> failure_before = ddp_->last_failure();
  const auto meet_after_step_of_others = [&](const std::string& error) {
    if (next == section.steps.size()) throw std::logic_error("join: a step in which no rank has a batch: " + error);
    ChaosReport report = report_on(section.steps[next++]);
    report.error = error;
    report.failure_before = std::exchange(failure_before, report.last_failure);
    meet(std::move(report));
  };
  for (bool ended = false; !ended;) {
    try {
      join.finish([&] {
        step_optimizer(section.steps[next].number);
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
  report.last_failure = ddp_->last_failure();
  report.parameters = copies_of(model_->parameters());
  report.gradients = gradients_of(trainable_);
  meet(std::move(report));
}

void ChaosRank::run_step(const ChaosStep& step) {
  const ChaosAction& action = *step.actions[static_cast<size_t>(group_.rank)];
  zero_gradients(step.zero_grad);
  const std::optional<StepFailure> failure_before = ddp_->last_failure();
  const std::vector<at::Tensor> before = gradients_of(trainable_);
  std::vector<at::Tensor> alone;
  const bool waits_in_forward = find_strategy(plan_.strategy).wait == Wait::kAtFirstUse;
  if (step.outcome != ChaosOutcome::kFails && !waits_in_forward) alone = gradients_alone(step, action);
  std::string error;
  bool own_fault = false;
  try {
    train(step, action);
  } catch (const OnPurpose& thrown) {
    error = thrown.what();
    own_fault = true;
  } catch (const StepError& failed) {
    error = failed.what();
    if (ddp_->last_failure() != failed.failure()) throw std::logic_error("last_failure() is not what was thrown: " + error);
  } catch (const RuntimeError& refused) {
    if (!may_be_refused(refused.what())) throw;
    error = refused.what();
  }
  if (error.empty()) {
    if (waits_in_forward) alone = gradients_alone(step, action);  // only now the parameters are complete that forward has used
    step_optimizer(step.number);
  } else {
    recover(step, action, own_fault);
    ddp_->drain();
  }
  ChaosReport report = report_on(step);
  if (error.empty() && leaves_late(step.number)) alone.clear();
  report.error = error;
  report.failure_before = failure_before;
  report.before = before;
  report.alone = std::move(alone);
  meet(std::move(report));
}

// A parameter may get more gradients than in the steps before only where the model varies: then backward may throw, on this rank.
bool ChaosRank::may_be_refused(const std::string& what) const {
  return plan_.model.checkpointing == Checkpointing::kSometimes && what.find("more gradients than") != std::string::npos;
}

void ChaosRank::train(const ChaosStep& step, const ChaosAction& action) {
  ddp_->set_gradient_synchronization(true);
  if (action.fault == ChaosFault::kAbandon) throw OnPurpose(fault_text(step));
  for (int micro = 0; !action.without_backward && micro < action.micro_batches; ++micro) micro_batch(step, action, micro);
  if (action.fault == ChaosFault::kAfterBackward) throw OnPurpose(fault_text(step));
  if (!plan_.finish_with_backward || action.finishes_twice) ddp_->finish_gradient_synchronization();
  if (action.fault != ChaosFault::kNone) throw std::logic_error("backward swallowed what was thrown in it");
}

void ChaosRank::micro_batch(const ChaosStep& step, const ChaosAction& action, int micro) {
  const bool synchronizes = micro == action.micro_batches - 1;
  const bool strikes = action.fault_micro == micro;
  const auto forward_and_backward = [&] {
    if (strikes && action.fault == ChaosFault::kForward) throw OnPurpose(fault_text(step));
    ChaosPass pass = action.pass;
    if (!strikes) pass.throw_at = kThrowNowhere;
    model_->loss(input(step, micro), pass, fault_text(step)).backward();
  };
  if (action.by_setter) ddp_->set_gradient_synchronization(synchronizes);
  if (action.by_setter || synchronizes) return forward_and_backward();
  const auto scope = ddp_->no_sync();
  forward_and_backward();
}

// What the handler of an exception does: nothing, or abandon_step() once or more, whether that is needed or not.
void ChaosRank::recover(const ChaosStep& step, const ChaosAction& action, bool own_fault) {
  const bool backward_told = own_fault && action.fault == ChaosFault::kBackward && action.abandons == 0;
  if (backward_told && !plan_.finish_with_backward && action.finishes_twice) finish_again();
  for (int i = 0; i < action.abandons; ++i) ddp_->abandon_step(fault_text(step));
  ddp_->set_gradient_synchronization(true);
}

// Without noticing that backward threw: the same error again.
void ChaosRank::finish_again() {
  try {
    ddp_->finish_gradient_synchronization();
  } catch (const StepError& error) {
    if (ddp_->last_failure() == error.failure()) return;
    throw std::logic_error("finish_gradient_synchronization() after a failure throws another one: " + std::string(error.what()));
  }
  throw std::logic_error("finish_gradient_synchronization() after a backward that threw has no error");
}

void ChaosRank::zero_gradients(ZeroGrad how) {
  if (how != ZeroGrad::kNever) optimizer_->zero_grad(how == ZeroGrad::kToNone);
}

at::Tensor ChaosRank::input(const ChaosStep& step, int micro) const {
  const int which = (step.number * plan_.ranks + group_.rank) * 4 + micro;
  return seeded_randn({kRows, plan_.model.width}, 1000 * plan_.seed + static_cast<uint64_t>(which)).to(at::kFloat).to(group_.device);
}

std::string ChaosRank::fault_text(const ChaosStep& step) const {
  return fmt::format("on purpose, rank {} in step {}", group_.rank, step.number);
}

std::vector<at::Tensor> ChaosRank::gradients_alone(const ChaosStep& step, const ChaosAction& action) {
  copy_parameters(*model_, *reference_);
  reference_->zero_grad();
  ChaosPass pass = action.pass;
  pass.checkpoints = false;
  for (int micro = 0; !action.without_backward && micro < action.micro_batches; ++micro) {
    reference_->loss(input(step, micro), pass, "").backward();
  }
  return gradients_of(reference_trainable_);
}

ChaosReport ChaosRank::report_on(const ChaosStep& step) const {
  ChaosReport report;
  report.where = describe(step);
  report.expected = step.outcome;
  report.culprits = step.culprits;
  report.knows_mean = step.knows_mean;
  report.tolerance = plan_.compresses ? 0.03 : 1e-4;
  report.last_failure = ddp_->last_failure();
  if (leaves_late(step.number) && !ddp_->last_failure()) {
    report.knows_mean = false;
    if (plan_.broadcast_buffers) report.buffers = copies_of(model_->buffers());
    return report;
  }
  report.parameters = copies_of(model_->parameters());
  if (plan_.broadcast_buffers) report.buffers = copies_of(model_->buffers());
  report.gradients = gradients_of(trainable_);
  return report;
}

void ChaosRank::meet(ChaosReport report) {
  meeting_.meet(group_.rank, std::move(report));
}

}  // namespace firkin
