// Real training: one step after another on all ranks, the same samples whatever their number.
//
//   Trainer trainer(group, model.ptr(), loss, data, settings, ddp_options);
//   while (trainer.next_step() < steps) {
//     const StepReport report = trainer.step(/*stop=*/false);
//     if (group.rank == 0) fmt::print("{} {}\n", report.step, report.loss);
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "train/optimization.h"
#include "train/training_data.h"

namespace firkin {

// Mean over a batch's tokens, a scalar, as a function of the module's parameters and of nothing that changes between two calls.
using LossFunction = std::function<at::Tensor(const TokenBatch& batch)>;

enum class OnNonFinite {
  kStop,  // throw NonFiniteError
  kSkip,  // leave the step out
};

struct TrainSettings {
  int64_t batch = 8;        // sequences of a step, all ranks together; each rank has as many
  int64_t micro_batch = 0;  // sequences of a forward and backward pass at most; 0: a rank's whole share
  Schedule schedule;
  AdamWSettings adamw;
  double clip_norm = 1;       // gradients are scaled down to this norm; 0: never
  double clip_each_norm = 0;  // each parameter's gradient is, as it arrives; 0: never. Not beside clip_norm
  OnNonFinite on_nonfinite = OnNonFinite::kStop;
};

// Throws InputError unless every rank gets as many sequences.
void check_batch(int64_t batch, int world_size);

// A loss or gradient that is no finite number. The message names step, rank and parameter; the same on every rank.
class NonFiniteError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

// One step, the same on every rank but for the times, which are this rank's, in seconds.
struct StepReport {
  int64_t step = 0;
  double loss = 0;  // mean over the step's tokens, before the update
  double learning_rate = 0;
  std::optional<double> gradient_norm;  // before clipping; none where that would wait for gradients (ordered without clipping)
  bool stop = false;                    // some rank asked to
  std::string skipped = {};             // why the step was left out; empty: it was not
  double step_s = 0;
  double data_s = 0;     // of it: reading samples
  double exposed_s = 0;  // of it: waiting for gradients
};

class Trainer {
 public:
  // Collective. The optimiser is AdamW; the same module on every rank, of which rank 0's parameters count. Throws InputError unless every
  // rank gets as many sequences of the batch, for clip_each_norm under the strategy sharded, and what DataParallel throws.
  Trainer(ProcessGroup group, std::shared_ptr<torch::nn::Module> module, LossFunction loss, TrainingData data, TrainSettings settings,
          const DataParallelOptions& options);

  // Collective. stop: this rank was asked to end. LibTorch's random numbers in a step depend on seed, step and rank alone. Throws
  // NonFiniteError under OnNonFinite::kStop, before the parameters have changed; and what a step of DataParallel throws.
  StepReport step(bool stop);

  // Mean loss over the first `windows` windows of the held part, or over all if there are fewer; the ranks share them. None when nothing is
  // held. Collective.
  std::optional<double> evaluate(int64_t windows);

  // The next step's number: all before it are done.
  int64_t next_step() const { return next_step_; }
  int64_t tokens_per_step() const { return settings_.batch * data_.training.sequence; }

  const ProcessGroup& group() const { return group_; }
  torch::nn::Module& module() { return ddp_.module(); }  // drained: for reading parameters
  // Of the whole module. Under the strategy sharded it has a state from gather_optimizer() to release_optimizer() alone, and what is put
  // into it counts from scatter_optimizer() on: each rank takes its part.
  TrainingAdamW& optimizer();
  void gather_optimizer();  // collective
  void scatter_optimizer();
  void release_optimizer();
  const DataParallel& data_parallel() const { return ddp_; }

  // To continue from a checkpoint, whose tensors are in module and optimiser already.
  void continue_at(int64_t step) { next_step_ = step; }

 private:
  double accumulate_gradients(StepReport& report);
  double clip_gradients(double max_norm) { return sharded_ ? sharded_->clip_gradients(max_norm) : overlapped_->clip_gradients(max_norm); }
  void skip_step();
  std::vector<std::pair<int64_t, int64_t>> micro_batches() const;
  std::string why_not_finite(const std::vector<double>& losses);

  ProcessGroup group_;
  ProcessGroup control_;
  std::shared_ptr<torch::nn::Module> module_;
  LossFunction loss_;
  TrainingData data_;
  TrainSettings settings_;
  DataParallel ddp_;
  std::unique_ptr<TrainingAdamW> optimizer_;  // null under the strategy sharded, but from gathering to releasing
  std::optional<OverlappedOptimizer> overlapped_;
  std::optional<ShardedOptimizer> sharded_;  // instead
  bool reads_norm_;
  int64_t next_step_ = 0;
};

}  // namespace firkin
