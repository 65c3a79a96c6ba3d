// Chooses the bucket size for your module on your machines: predicted, measured, and checked with further steps.
// Link firkin::tune.
//
//   const auto step = [&] {  // as without ranks
//     optimizer.zero_grad();
//     loss(net->forward(x), y).backward();
//     optimizer.step();
//   };
//   const firkin::ModuleTuning tuning = firkin::tune(*net, step, group);
//   if (group.rank == 0) std::cout << tuning.text;
//   firkin::DataParallel ddp(*net, group, tuning.options);  // and train
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/measurements.h"
#include "firkin/stats/estimates.h"

#include <torch/nn/module.h>

namespace firkin {

// One training step, written as for a single process. It runs backward() once, on the calling thread, gives every
// trainable parameter a gradient, ends with the optimiser, and synchronises nothing.
using TrainingStep = std::function<void()>;

// What the performance model needs to know about a module.
struct ModuleProfile {
  TensorProfile tensors;             // in gradient-ready order; write_tensors_csv() for `firkin predict`
  std::vector<int64_t> ready_order;  // the same order, in the form of DataParallelOptions::ready_order
  double bare_backward_s = 0;        // backward without hooks: the slowest rank's, median over steps
};

struct ModuleTuningOptions {
  double seconds = 120;       // about how long all of it takes: slow steps run fewer times, but at least some 200
  std::vector<int64_t> caps;  // bytes; raced along with the best predicted caps
  // How many blocks measure the gain; 95 % intervals need 6. None: until the gain is settled, within `seconds`.
  std::optional<int> blocks = {};
  int warmup_steps = 1;           // after each change of setting
  int steps_per_block = 2;        // timed
  int profile_steps = 20;         // 4 or more
  double allreduce_seconds = 10;  // for the whole table a(x)
  uint64_t seed = 0;              // for the order of settings in a block
  std::string name = "module";    // in the report
  // Other tensors that a step changes: a memory bank, {bank}, or a teacher's, teacher->parameters(). They are restored.
  std::vector<at::Tensor> also;
  // Folder for rank 0's results.json, tensors.csv and allreduce.csv, of which `firkin report` makes a page; empty:
  // none.
  std::string out;
  bool progress = true;  // lines on rank 0's standard error
};

// A raced cap: its prediction, and seconds of a measured step in a typical block.
struct TunedCap : PredictedCap {
  double measured_s = 0;
  Interval measured_ci_s;  // 95 %
  bool tied = false;       // not distinguishable from the chosen cap
};

struct ModuleTuning {
  DataParallelOptions options;  // bucketed, with the chosen cap and the ready order
  int64_t cap_bytes = 0;        // chosen
  Decision decision;            // what the choice gains over PyTorch's default, and why it was made
  std::vector<TunedCap> curve;  // the raced caps, ascending
  ModuleProfile profile;
  AllReduceTable allreduce;
  std::string text;                // what `firkin tune` would print
  std::vector<std::string> notes;  // what was left out, one sentence each
};

// Collective: every rank calls it with a module of the same parameters, and gets the same result. Steps the module some
// hundred times under each setting. Afterwards, even after an error, the module's parameters and buffers and the tensors
// of options.also have the values from before, and no gradients. Nothing else is restored: construct the optimiser anew,
// and set the seed again (firkin.tune in Python finds and restores both by itself). Memory: one copy of what is restored, and what
// the strategies need (docs/data_parallel.md). One call at a time in a process.
//
// Throws on every rank: InputError for options out of range, a module without trainable parameters or with several
// dtypes among them, a step that runs no backward or several, a parameter without gradient, and (rank 0) an unwritable
// folder; RuntimeError if the modules of two ranks differ. If a step throws on one rank, it throws there, and the
// others throw GroupError after the group's timeout.
ModuleTuning tune(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group, const ModuleTuningOptions& options = {});

// Only the profile: when each gradient is ready. Collective. Throws like tune().
ModuleProfile profile(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group, int steps = 20);

}  // namespace firkin
