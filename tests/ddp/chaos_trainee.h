// One module of a rank in a chaos sequence: wrapped, with its optimiser, and beside it a copy that knows of no other ranks.
#pragma once

#include "chaos_plan.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"

namespace firkin {

class ChaosTrainee {
 public:
  // module: its place in the plan.
  ChaosTrainee(const ChaosPlan& plan, int module, const ProcessGroup& group)
      : plan_(plan),
        strategy_(find_strategy(plan.strategy)),
        group_(group),
        model_(std::make_shared<ChaosModel>(plan.model, group.device)),
        reference_(std::make_shared<ChaosModel>(plan.model, group.device)) {
    list_trainable();
    seed_parameters(*model_, 1000 * plan.seed + 100 * static_cast<uint64_t>(group.rank) + 50 * static_cast<uint64_t>(module));
    if (!strategy_.shards) optimizer_ = make_optimizer(model_->parameters());
    ddp_ = std::make_unique<DataParallel>(*model_, group_, options());  // rank 0's parameters are broadcast
    if (strategy_.shards) {
      sharded_ = std::make_unique<ShardedOptimizer>(
          *ddp_, [this](const std::vector<NamedTensor>& parts) { return make_optimizer(tensors_of(parts)); },
          ShardedOptions{.whole_parameters = plan_.whole_parameters});
    } else {
      overlapped_ = std::make_unique<OverlappedOptimizer>(*ddp_, *optimizer_);
    }
  }

  DataParallel& ddp() { return *ddp_; }
  ChaosModel& model() { return *model_; }

  // Makes the change, on this rank. step: of its values.
  void change(const ChaosChange& change, int step) {
    torch::nn::Module& drained = ddp_->module();
    const auto own = change.same_values ? 0 : 100 * static_cast<uint64_t>(group_.rank);
    const uint64_t seed = 1000 * plan_.seed + 17 * static_cast<uint64_t>(step) + own;
    if (change.kind == ChaosChangeKind::kAdd) {
      const auto layer = model_->add_layer(change.name);
      reference_->add_layer(change.name);
      seed_parameters(*layer, seed);
      for (const at::Tensor& parameter : layer->parameters()) {
        if (!sharded_) optimized().push_back(parameter);  // a ShardedOptimizer finds new parameters by itself
      }
    } else if (change.kind == ChaosChangeKind::kReplace) {
      const auto i = static_cast<size_t>(change.name.back() - '0');
      const Tensors old = drained.named_modules()[change.name]->parameters();
      const auto layer = model_->replace_layer(i);
      reference_->replace_layer(i);
      seed_parameters(*layer, seed);
      for (size_t p = 0; p < old.size() && !sharded_; ++p) replace_in_optimizer(old[p], layer->parameters()[p]);
    } else {
      for (torch::nn::Module* module : {&drained, static_cast<torch::nn::Module*>(reference_.get())}) {
        at::Tensor parameter = module->named_parameters()[change.name];
        parameter.set_requires_grad(change.kind == ChaosChangeKind::kThaw);
        parameter.mutable_grad().reset();  // a frozen one that kept its last gradient would be stepped with that
      }
    }
    list_trainable();
  }

  // Under ordered and sharded, every other step leaves gradients or parameters on their way, and has nothing to compare yet.
  bool leaves_late(int step) const { return strategy_.wait == Wait::kAtFirstUse && step % 2 == 1 && !plan_.clips_by_hand; }

  void zero_gradients(ZeroGrad how) {
    if (how == ZeroGrad::kNever) return;
    const bool to_none = how == ZeroGrad::kToNone;
    if (plan_.keeps_gradients && to_none) {
      kept_.clear();
      for (const at::Tensor& parameter : trainable_) {
        if (parameter.grad().defined()) kept_.push_back(parameter.grad());
      }
      kept_values_ = copies(kept_);
    }
    if (sharded_) return model_->zero_grad(to_none);
    plan_.seed % 2 == 0 ? optimizer_->zero_grad(to_none) : overlapped_->zero_grad(to_none);
  }

  // Throws std::logic_error if somebody has written to a gradient that was kept.
  void check_kept_gradients() const {
    for (size_t i = 0; i < kept_.size(); ++i) {
      const bool is_same = at::allclose(kept_[i].cpu(), kept_values_[i], /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
      if (!is_same) throw std::logic_error(fmt::format("gradient {} that the program keeps has other values", i));
    }
  }

  void step_optimizer(int step) {
    if (!leaves_late(step) && overlapped_) overlapped_->drain();
    stepped_gradients_ = sharded_ ? gathered_gradients() : gradients();
    constexpr double kMaxNorm = 0.1;
    if (plan_.clips_by_hand) torch::nn::utils::clip_grad_norm_(optimized(), kMaxNorm);
    if (plan_.clip_norm) sharded_ ? sharded_->clip_gradients(*plan_.clip_norm) : overlapped_->clip_gradients(*plan_.clip_norm);
    sharded_ ? sharded_->step() : overlapped_->step();
    if (!leaves_late(step) && sharded_) ddp_->drain();
  }

  at::Tensor input(int step, int micro) const {
    constexpr int64_t kRows = 3;  // of a micro-batch
    const int which = (step * plan_.ranks + group_.rank) * 4 + micro;
    return seeded_randn({kRows, plan_.model.width}, 1000 * plan_.seed + static_cast<uint64_t>(which)).to(at::kFloat).to(group_.device);
  }

  Tensors gradients() const { return gradients_of(trainable_); }
  // That the last optimiser's step has seen, before it clipped them.
  const Tensors& stepped_gradients() const { return stepped_gradients_; }

  // What this rank's batches give without the others.
  Tensors gradients_alone(const ChaosStep& step, const ChaosAction& action) {
    write(model_->parameters(), reference_->parameters());
    reference_->zero_grad();
    ChaosPass pass = action.pass;
    pass.checkpoints = false;
    for (int micro = 0; !action.without_backward && micro < action.micro_batches; ++micro) {
      reference_->loss(input(step.number, micro), pass, "").backward();
    }
    return gradients_of(reference_trainable_);
  }

  void multiply_rate(double factor) {
    for (auto& group : optimizer().param_groups()) group.options().set_lr(group.options().get_lr() * factor);
  }

  // Parameters and buffers; and back to them, with an optimiser that remembers nothing.
  Tensors save() { return copies(parameters_and_buffers()); }
  void restore(const Tensors& saved) {
    write(saved, parameters_and_buffers());
    optimizer_->state().clear();
  }

 private:
  static Tensors gradients_of(const Tensors& parameters) {
    Tensors gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
    return copies(gradients);
  }

  static void write(const Tensors& from, const Tensors& to) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Tensors& parameters) const {
    if (plan_.adam) return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  torch::optim::Optimizer& optimizer() { return sharded_ ? sharded_->optimizer() : *optimizer_; }
  Tensors& optimized() { return optimizer().param_groups()[0].params(); }
  void replace_in_optimizer(const at::Tensor& old, const at::Tensor& replacement) {
    for (at::Tensor& parameter : optimized()) {
      if (parameter.is_same(old)) parameter = replacement;
    }
    optimizer_->state().erase(old.unsafeGetTensorImpl());
  }

  DataParallelOptions options() const {
    DataParallelOptions options;
    options.strategy = strategy_;
    options.cap = plan_.cap;
    options.finish_with_backward = plan_.finish_with_backward;
    options.find_unused_parameters = plan_.find_unused_parameters;
    options.broadcast_buffers = plan_.broadcast_buffers;
    options.audit_every = plan_.audit_every;
    if (plan_.compresses) options.gradient_hook = bf16_compression();
    std::vector<int64_t> order = draw_ready_order(plan_.seed, trainable_.size());
    if (plan_.explicit_ready_order) options.ready_order = order;
    if (strategy_.grouping != Grouping::kPlan) return options;
    if (!plan_.explicit_ready_order) std::iota(order.rbegin(), order.rend(), 0);
    std::vector<at::ScalarType> dtypes;
    for (const at::Tensor& parameter : trainable_) dtypes.push_back(parameter.scalar_type());
    options.plan = draw_bucket_plan(plan_.seed, dtypes, order);
    return options;
  }

  void list_trainable() {
    trainable_ = tensors_of(trainable_parameters(*model_));
    reference_trainable_ = tensors_of(trainable_parameters(*reference_));
  }

  Tensors parameters_and_buffers() {
    ddp_->drain();
    Tensors tensors = model_->parameters();
    for (const at::Tensor& buffer : model_->buffers()) tensors.push_back(buffer);
    return tensors;
  }

  // Each rank has its parts of them. Undefined where no rank has any. Collective.
  Tensors gathered_gradients() {
    Tensors gradients;
    for (const at::Tensor& parameter : trainable_) {
      at::Tensor whole = at::zeros_like(parameter), parts = at::zeros({1});
      for (const at::Tensor& part : optimized()) {
        if (!part.grad().defined() || !part.is_alias_of(parameter)) continue;
        whole.view(-1).narrow(0, part.storage_offset() - parameter.storage_offset(), part.numel()).copy_(part.grad().reshape(-1));
        parts.add_(1);
      }
      all_reduce(group_, whole);
      all_reduce(group_, parts);
      gradients.push_back(parts.item<double>() > 0 ? whole : at::Tensor());
    }
    return copies(gradients);
  }

  const ChaosPlan& plan_;
  Strategy strategy_;
  ProcessGroup group_;
  std::shared_ptr<ChaosModel> model_;
  std::shared_ptr<ChaosModel> reference_;  // the same numbers, and no other ranks
  Tensors trainable_, reference_trainable_;
  Tensors stepped_gradients_;
  Tensors kept_, kept_values_;                          // gradients of an earlier step
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  // goes last: it may be audited
  std::unique_ptr<DataParallel> ddp_;
  std::unique_ptr<OverlappedOptimizer> overlapped_;  // or
  std::unique_ptr<ShardedOptimizer> sharded_;        // under sharded, instead of optimizer_
};

}  // namespace firkin
