// One module of a rank in a chaos sequence: wrapped, with its optimiser, and beside it a copy that knows of no other ranks.
#pragma once

#include "chaos_plan.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"

namespace firkin {

// On the CPU, where all ranks may read them.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);

class ChaosTrainee {
 public:
  // module: its place in the plan.
  ChaosTrainee(const ChaosPlan& plan, int module, const ProcessGroup& group);

  DataParallel& ddp() { return *ddp_; }
  ChaosModel& model() { return *model_; }

  // Makes the change, on this rank. step: of its values.
  void change(const ChaosChange& change, int step);

  // Under ordered and sharded, every other step leaves gradients or parameters on their way, and has nothing to compare yet.
  bool leaves_late(int step) const;
  void zero_gradients(ZeroGrad how);
  // Throws std::logic_error if somebody has written to a gradient that was kept.
  void check_kept_gradients() const;
  void step_optimizer(int step);
  void update_average();

  at::Tensor input(int step, int micro) const;
  std::vector<at::Tensor> gradients() const;
  // That the last optimiser's step has seen, before it clipped them.
  const std::vector<at::Tensor>& stepped_gradients() const { return stepped_gradients_; }
  const std::vector<at::Tensor>& average() const { return average_; }
  // What this rank's batches give without the others.
  std::vector<at::Tensor> gradients_alone(const ChaosStep& step, const ChaosAction& action);

  void multiply_rate(double factor);
  // Parameters and buffers; and back to them, with an optimiser that remembers nothing.
  std::vector<at::Tensor> save();
  void restore(const std::vector<at::Tensor>& saved);

 private:
  DataParallelOptions options() const;
  torch::optim::Optimizer& optimizer() { return sharded_ ? sharded_->optimizer() : *optimizer_; }
  std::vector<at::Tensor>& optimized() { return optimizer().param_groups()[0].params(); }
  std::vector<at::Tensor> gathered_gradients();
  void move_teacher();
  void replace_in_optimizer(const at::Tensor& old, const at::Tensor& replacement);
  void note_trainable();

  const ChaosPlan& plan_;
  int module_;
  ProcessGroup group_;
  std::shared_ptr<ChaosModel> model_;
  std::shared_ptr<ChaosModel> reference_;  // the same numbers, and no other ranks
  std::vector<at::Tensor> trainable_;
  std::vector<at::Tensor> reference_trainable_;
  std::vector<at::Tensor> stepped_gradients_;
  std::vector<at::Tensor> average_;
  std::vector<at::Tensor> kept_;  // gradients of an earlier step, and
  std::vector<at::Tensor> kept_values_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  // goes last: it may be audited
  std::unique_ptr<DataParallel> ddp_;
  std::unique_ptr<OverlappedOptimizer> overlapped_;  // or
  std::unique_ptr<ShardedOptimizer> sharded_;        // under sharded, instead of optimizer_
};

}  // namespace firkin
