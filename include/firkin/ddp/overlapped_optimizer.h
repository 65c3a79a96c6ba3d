// An optimiser that steps each parameter when its gradient has arrived: behind the next forward, under the strategy `ordered`.
//
//   DataParallel ddp(*net, group, {.strategy = find_strategy("ordered")});
//   torch::optim::AdamW optimizer(net->parameters(), 1e-3);
//   OverlappedOptimizer overlapped(ddp, optimizer);
//   for (auto& batch : my_part_of_the_data) {
//     optimizer.zero_grad();
//     loss(net->forward(batch.x), batch.y).backward();  // modules call await_parameters(*this) in forward
//     overlapped.step();
//     schedule.step();                                  // of `optimizer`, as before
//   }
//   overlapped.drain();  // before parameters are read: evaluation, checkpoints
#pragma once

#include "firkin/ddp/data_parallel.h"

#include <torch/optim/optimizer.h>

namespace firkin {

// Any optimiser of LibTorch but L-BFGS, and any other that leaves parameters without gradient alone and keeps its state per parameter; of
// one that is not LibTorch's own, the learning rate is what a late step remembers of its options. It is one optimiser with one state:
// torch::save(optimizer) after drain() holds what it would hold under another strategy, and parameters are the same to the last bit.
// Under other strategies step() is optimizer.step(), and the rest does nothing.
//
// The optimiser and the DataParallel object must outlive this one. Not thread-safe.
struct OverlappedOptions {
  // step() clips all gradients together by their global norm, as clip_gradients() does; 0: not. The norm needs every gradient, so nothing
  // is left to hide behind the next forward: what `ordered` gains over `bucketed` is lost.
  double clip_norm = 0;
  // Each parameter's gradient is scaled down to this norm by itself, when it arrives; 0: not. Costs no wait, and is another algorithm than
  // clipping by the global norm: directions of steps change. The same to the last bit under every strategy. Not beside clip_norm.
  double clip_each_norm = 0;
};

class OverlappedOptimizer {
 public:
  // The optimiser's state is audited with the parameters (DataParallel::audit_optimizer()).
  OverlappedOptimizer(DataParallel& ddp, torch::optim::Optimizer& optimizer, OverlappedOptions options = {});
  // Drains, if the group is not lost.
  ~OverlappedOptimizer();
  OverlappedOptimizer(const OverlappedOptimizer&) = delete;
  OverlappedOptimizer& operator=(const OverlappedOptimizer&) = delete;

  // Steps the parameters whose gradients have arrived; the others are stepped when they are awaited, with the options that the optimiser
  // has now. Throws InputError for L-BFGS, GroupError when the group is lost, RuntimeError when gradients that had arrived were changed
  // since backward while others were on their way: a clip_grad_norm_() there would lack those.
  void step();

  // Waits for all gradients that are under way. After step(): and steps their parameters. Before it: they are gradients as under any other
  // strategy, to be read or clipped. Throws GroupError when a collective failed.
  void drain() { ddp_->drain(); }

  // Drains, then optimizer.zero_grad(): gradients on their way are used first.
  void zero_grad(bool set_to_none = true);

  // Drained: for schedulers, options and torch::save().
  torch::optim::Optimizer& optimizer();

  // torch::nn::utils::clip_grad_norm_() over the optimiser's parameters, between backward() and step(). The norm needs all gradients, so
  // this drains: nothing is left to hide behind the next forward, and a warning says once how long that took. Returns the norm.
  double clip_gradients(double max_norm);

 private:
  DataParallel* ddp_;
  torch::optim::Optimizer* optimizer_;
  OverlappedOptions options_;
};

}  // namespace firkin
