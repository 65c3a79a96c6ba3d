// Which bucket size is best for a module of yours, on the machines that you are on: measured, predicted, checked with real steps. Link
// firkin::tune.
//
//   const auto step = [&] { optimizer.zero_grad(); loss(net->forward(x), y).backward(); optimizer.step(); };  // as without ranks
//   const firkin::ModuleTuning tuning = firkin::tune(*net, step, group);
//   if (group.rank == 0) std::cout << tuning.text;
//   firkin::DataParallel ddp(*net, group, tuning.options);  // and train
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/tensor_profile.h"
#include "firkin/stats/interval.h"

#include <torch/nn/module.h>

namespace firkin {

// One training step as its user wrote it for one process: it ends with the optimiser, runs backward() once, on the thread that calls it,
// gives every trainable parameter a gradient, and synchronises nothing.
using TrainingStep = std::function<void()>;

// What the performance model needs to know of a module.
struct ModuleProfile {
  TensorProfile tensors;             // in gradient-ready order; write_tensors_csv() for `firkin predict`
  std::vector<int64_t> ready_order;  // the same order, as DataParallelOptions::ready_order takes it
  double bare_backward_s = 0;        // backward without a hook: median over steps of the slowest rank
};

struct ModuleTuningOptions {
  double seconds = 120;           // for all of it, about: where steps are slow there are fewer of them, some 200 at the least
  std::vector<int64_t> caps;      // bytes, to be raced with the best predicted
  int blocks = 12;                // that measure the gain, at most; from 6 on there are intervals of 95 %
  int warmup_steps = 1;           // after every switch of the setting
  int steps_per_block = 2;        // timed
  int profile_steps = 20;         // 4 or more
  double allreduce_seconds = 10;  // for the whole table a(x)
  uint64_t seed = 0;              // of the order of settings in a block
  std::string name = "module";    // in the report
  std::string out;                // rank 0 writes report.html, results.json, tensors.csv and allreduce.csv here; empty: nothing
  bool progress = true;           // lines on rank 0's standard error
};

struct TunedCap {
  int64_t cap_bytes = 0;
  int64_t buckets = 0;
  double predicted_s = 0;  // a step
  double measured_s = 0;   // a step: of a typical block
  Interval measured_ci_s;  // 95 %
  bool tied = false;       // cannot be told from the chosen one
};

struct ModuleTuning {
  DataParallelOptions options;  // bucketed, with the chosen cap and the ready order
  int64_t cap_bytes = 0;        // chosen
  Decision decision;            // what that is worth, over PyTorch's default caps too
  std::vector<TunedCap> curve;  // the caps that were raced, ascending
  ModuleProfile profile;
  AllReduceTable allreduce;
  std::string text;                // what `firkin tune` would print
  std::vector<std::string> notes;  // what was left out, one sentence each
};

// Collective: every rank calls it with a module of the same parameters, and gets the same result. Steps the module some hundred times, on
// the CPU, under each setting; then parameters and buffers are what they were, and gradients are none. What else a step changes stays
// changed: make the optimiser anew. In memory: one copy of the parameters, and what the strategies need (docs/data_parallel.md).
//
// Throws, on every rank: InputError for options out of range, a module without trainable parameters or with several dtypes among them, a
// step that runs no backward or several, a parameter without gradient, and (rank 0) a folder that cannot be written; RuntimeError when the modules of two
// ranks differ. A step that throws on one rank throws there, and GroupError on the others once the group's timeout has passed.
ModuleTuning tune(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group, const ModuleTuningOptions& options = {});

// The first part of it alone: when each gradient is ready. Collective. Throws as tune().
ModuleProfile profile(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group, int steps = 20);

}  // namespace firkin
