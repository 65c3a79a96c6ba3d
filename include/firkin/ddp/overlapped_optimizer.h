// An optimiser that steps each parameter when its gradient has arrived: behind the next forward, under the strategy
// `ordered`.
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
//   overlapped.drain();  // before reading parameters: evaluation, checkpoints
#pragma once

#include "firkin/ddp/data_parallel.h"

#include <torch/optim/optimizer.h>

namespace firkin {

// Works with every LibTorch optimiser except L-BFGS, and with any other that skips parameters without gradient and
// keeps its state per parameter (a late step of such an optimiser uses only the learning rate among its options). There
// is one optimiser with one state: after drain(), torch::save(optimizer) holds what it would hold under another
// strategy, and parameters are equal to the last bit. Under other strategies step() is optimizer.step(), and the rest
// does nothing.
//
// The optimiser and the DataParallel object must outlive this one. Not thread-safe.
class OverlappedOptimizer {
 public:
  // Also audits the optimiser's state (DataParallel::audit_optimizer()).
  OverlappedOptimizer(DataParallel& ddp, torch::optim::Optimizer& optimizer);
  // Drains, unless the group is lost.
  ~OverlappedOptimizer();
  OverlappedOptimizer(const OverlappedOptimizer&) = delete;
  OverlappedOptimizer& operator=(const OverlappedOptimizer&) = delete;

  // Steps the parameters whose gradients have arrived; the others are stepped when they are awaited, with the options
  // the optimiser has now. Throws InputError for L-BFGS, GroupError if the group is lost, and RuntimeError if gradients
  // were changed since backward while others were still in flight (a clip_grad_norm_() would miss those).
  void step();

  // Waits for all gradients in flight. After step(), also steps their parameters; before it, they become readable as
  // under any other strategy. Throws GroupError if a collective failed.
  void drain() { ddp_->drain(); }

  // Drains, then calls optimizer.zero_grad(): gradients in flight are used first.
  void zero_grad(bool set_to_none = true);

  // The optimiser, after drain(): for schedulers, options and torch::save().
  torch::optim::Optimizer& optimizer();

  // torch::nn::utils::clip_grad_norm_() over the optimiser's parameters, between backward() and step(). It needs all
  // gradients and therefore drains: nothing is left to hide behind the next forward, `ordered` gains nothing over
  // `bucketed`, and one warning says how long the wait took. Returns the norm.
  double clip_gradients(double max_norm);

 private:
  DataParallel* ddp_;
  torch::optim::Optimizer* optimizer_;
};

}  // namespace firkin
