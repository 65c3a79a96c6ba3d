#include "chaos_trainee.h"

#include "../torch.h"
#include "firkin/ddp/module_parameters.h"
#include "tensors.h"

namespace firkin {
namespace {

constexpr int64_t kRows = 3;  // of a micro-batch

std::vector<at::Tensor> trainable_tensors(const torch::nn::Module& module) {
  return tensors_of(trainable_parameters(module));
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return copies_of(gradients);
}

void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const ChaosPlan& plan, const std::vector<at::Tensor>& parameters) {
  if (plan.adam) return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

}  // namespace

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                                      : at::Tensor());
  }
  return copies;
}

ChaosTrainee::ChaosTrainee(const ChaosPlan& plan, int module, const ProcessGroup& group)
    : plan_(plan),
      module_(module),
      group_(group),
      model_(std::make_shared<ChaosModel>(plan.model, group.device)),
      reference_(std::make_shared<ChaosModel>(plan.model, group.device)) {
  note_trainable();
  seed_parameters(*model_, 1000 * plan.seed + 100 * static_cast<uint64_t>(group.rank) + 50 * static_cast<uint64_t>(module));
  const bool shards = find_strategy(plan_.strategy).shards;
  if (!shards) optimizer_ = make_optimizer(plan_, model_->leaves());
  ddp_ = std::make_unique<DataParallel>(*model_, group_, options());  // rank 0's parameters are broadcast
  if (shards) {
    sharded_ = std::make_unique<ShardedOptimizer>(
        *ddp_, [&](const std::vector<NamedTensor>& parts) { return make_optimizer(plan_, tensors_of(parts)); },
        ShardedOptions{.whole_parameters = plan_.whole_parameters});
    return;
  }
  overlapped_ = std::make_unique<OverlappedOptimizer>(*ddp_, *optimizer_);
}

DataParallelOptions ChaosTrainee::options() const {
  DataParallelOptions options;
  options.strategy = find_strategy(plan_.strategy);
  options.cap = plan_.cap;
  options.finish_with_backward = plan_.finish_with_backward;
  options.find_unused_parameters = plan_.find_unused_parameters;
  options.broadcast_buffers = plan_.broadcast_buffers;
  options.audit_every = plan_.audit_every;
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

void ChaosTrainee::note_trainable() {
  trainable_ = trainable_tensors(*model_);
  reference_trainable_ = trainable_tensors(*reference_);
}

void ChaosTrainee::change(const ChaosChange& change, int step) {
  torch::nn::Module& drained = ddp_->module();
  const uint64_t seed =
      1000 * plan_.seed + 17 * static_cast<uint64_t>(step) + (change.same_values ? 0 : 100 * static_cast<uint64_t>(group_.rank));
  switch (change.kind) {
    case ChaosChangeKind::kThaw:
    case ChaosChangeKind::kFreeze:
      for (torch::nn::Module* module : {&drained, static_cast<torch::nn::Module*>(reference_.get())}) {
        at::Tensor parameter = module->named_parameters()[change.name];
        parameter.set_requires_grad(change.kind == ChaosChangeKind::kThaw);
        parameter.mutable_grad().reset();  // a frozen one that kept its last gradient would be stepped with that
      }
      break;
    case ChaosChangeKind::kAdd: {
      const auto layer = model_->add_layer();
      reference_->add_layer();
      seed_parameters(*layer, seed);
      if (sharded_) break;  // it finds new parameters by itself
      for (const at::Tensor& parameter : layer->parameters()) optimized().push_back(parameter);
      break;
    }
    case ChaosChangeKind::kReplace: {
      const int i = change.name.back() - '0';
      const std::vector<at::Tensor> old = drained.named_modules()[change.name]->parameters();
      const auto layer = model_->replace_layer(i);
      reference_->replace_layer(i);
      seed_parameters(*layer, seed);
      for (size_t p = 0; p < old.size() && !sharded_; ++p) replace_in_optimizer(old[p], layer->parameters()[p]);
      break;
    }
  }
  note_trainable();
}

void ChaosTrainee::replace_in_optimizer(const at::Tensor& old, const at::Tensor& replacement) {
  for (at::Tensor& parameter : optimized()) {
    if (parameter.is_same(old)) parameter = replacement;
  }
  optimizer_->state().erase(old.unsafeGetTensorImpl());
}

bool ChaosTrainee::leaves_late(int step) const {
  return find_strategy(plan_.strategy).wait == Wait::kAtFirstUse && step % 2 == 1 && !plan_.clips_by_hand;
}

void ChaosTrainee::zero_gradients(ZeroGrad how) {
  if (how == ZeroGrad::kNever) return;
  if (plan_.keeps_gradients && how == ZeroGrad::kToNone) {
    kept_.clear();
    for (const at::Tensor& parameter : trainable_) {
      if (parameter.grad().defined()) kept_.push_back(parameter.grad());
    }
    kept_values_ = copies_of(kept_);
  }
  if (sharded_) return model_->zero_grad(how == ZeroGrad::kToNone);
  if (plan_.seed % 2 == 0) {
    optimizer_->zero_grad(how == ZeroGrad::kToNone);
  } else {
    overlapped_->zero_grad(how == ZeroGrad::kToNone);
  }
}

void ChaosTrainee::check_kept_gradients() const {
  for (size_t i = 0; i < kept_.size(); ++i) {
    const bool is_same = at::allclose(kept_[i].cpu(), kept_values_[i], /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
    if (!is_same) throw std::logic_error(fmt::format("gradient {} that the program keeps has other values", i));
  }
}

// Each rank has its parts of them. Undefined where no rank has any. Collective.
std::vector<at::Tensor> ChaosTrainee::gathered_gradients() {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : trainable_) {
    at::Tensor whole = at::zeros_like(parameter);
    at::Tensor parts = at::zeros({1});
    for (const at::Tensor& part : optimized()) {
      if (!part.grad().defined() || !part.is_alias_of(parameter)) continue;
      whole.view(-1).narrow(0, part.storage_offset() - parameter.storage_offset(), part.numel()).copy_(part.grad().reshape(-1));
      parts.add_(1);
    }
    all_reduce(group_, whole);
    all_reduce(group_, parts);
    gradients.push_back(parts.item<double>() > 0 ? whole : at::Tensor());
  }
  return copies_of(gradients);
}

void ChaosTrainee::step_optimizer(int step) {
  if (sharded_) {
    stepped_gradients_ = gathered_gradients();
    if (plan_.clip_norm) sharded_->clip_gradients(*plan_.clip_norm);
    sharded_->step();
    if (!leaves_late(step)) ddp_->drain();
    return move_teacher();
  }
  if (!leaves_late(step)) overlapped_->drain();
  stepped_gradients_ = gradients();
  constexpr double kMaxNorm = 0.1;
  if (plan_.clips_by_hand) torch::nn::utils::clip_grad_norm_(optimized(), kMaxNorm);
  if (plan_.clip_norm) overlapped_->clip_gradients(*plan_.clip_norm);
  overlapped_->step();
  move_teacher();
}

void ChaosTrainee::move_teacher() {
  if (!plan_.model.teacher) return;
  ddp_->receive_parameters(*model_->last());
  model_->move_teacher();
}

void ChaosTrainee::update_average() {
  constexpr double kWeight = 0.1;  // of the newest
  ddp_->drain();
  const std::vector<at::Tensor> parameters = copies_of(model_->leaves());
  if (average_.size() != parameters.size()) {
    average_ = parameters;
    return;
  }
  for (size_t i = 0; i < parameters.size(); ++i) average_[i].mul_(1 - kWeight).add_(parameters[i], kWeight);
}

at::Tensor ChaosTrainee::input(int step, int micro) const {
  const int which = (step * plan_.ranks + group_.rank) * 4 + micro;
  return seeded_randn({kRows, plan_.model.width}, 1000 * plan_.seed + static_cast<uint64_t>(which)).to(at::kFloat).to(group_.device);
}

std::vector<at::Tensor> ChaosTrainee::gradients() const {
  return gradients_of(trainable_);
}

std::vector<at::Tensor> ChaosTrainee::gradients_alone(const ChaosStep& step, const ChaosAction& action) {
  copy_all(model_->leaves(), reference_->leaves());
  reference_->zero_grad();
  ChaosPass pass = action.pass;
  pass.checkpoints = false;
  for (int micro = 0; !action.without_backward && micro < action.micro_batches; ++micro) {
    reference_->loss(input(step.number, micro), pass, "").backward();
  }
  return gradients_of(reference_trainable_);
}

void ChaosTrainee::multiply_rate(double factor) {
  for (auto& group : optimizer().param_groups()) group.options().set_lr(group.options().get_lr() * factor);
}

std::vector<at::Tensor> ChaosTrainee::save() {
  ddp_->drain();
  std::vector<at::Tensor> tensors = model_->leaves();
  for (const at::Tensor& buffer : model_->buffers()) tensors.push_back(buffer);
  return copies_of(tensors);
}

void ChaosTrainee::restore(const std::vector<at::Tensor>& saved) {
  ddp_->drain();
  std::vector<at::Tensor> tensors = model_->leaves();
  for (const at::Tensor& buffer : model_->buffers()) tensors.push_back(buffer);
  copy_all(saved, tensors);
  optimizer_->state().clear();
}

}  // namespace firkin
