// An optimiser of which every rank holds its part: under the strategy `sharded`, P ranks keep a P-th of its state each.
//
//   DataParallel ddp(*net, group, {.strategy = find_strategy("sharded")});
//   ShardedOptimizer sharded(ddp, [](const std::vector<NamedTensor>& parts) {
//     return std::make_unique<torch::optim::AdamW>(tensors_of(parts), 1e-3);
//   });
//   for (auto& batch : my_part_of_the_data) {
//     loss(net->forward(batch.x), batch.y).backward();  // modules call await_parameters(*this) in forward
//     sharded.step();
//   }
//   evaluate(ddp.module());  // waits for parameters that are on their way
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "firkin/ddp/data_parallel.h"

#include <torch/optim/optimizer.h>

namespace firkin {

struct ShardedOptions {
  // Steps are taken on a copy in float32 of each part in lower precision, or what is less than half the distance to the next value would
  // be lost (Micikevicius et al. 2018, "Mixed precision training", 3.1). Costs 4 bytes a parameter, divided by the number of ranks. The
  // part's gradient and state are in float32 too. Values that the program writes into a parameter reach its master with the next step().
  bool master_weights = false;
};

// Each bucket is divided evenly among the ranks. Backward leaves every rank the mean gradient of its part; step() steps the part, and sends
// it to the others bucket by bucket, in the order in which the first forward used the parameters. A module that awaits its parameters
// (await_parameters.h) lets this continue behind the layers before it; without awaits step() waits for all. The optimiser works element by
// element: SGD, Adam, AdamW, RMSprop or Adagrad of LibTorch. On two ranks parameters are to the last bit those of `bucketed`.
//
// Parameters' gradients are undefined after every step: what a rank has is part.tensor.grad(). A step that failed leaves none. Every step
// that succeeded must be followed by step() on every rank; otherwise the next one fails everywhere. If the optimiser throws on a rank, the
// group is lost: the others would wait for its parameters.
//
// DataParallel::parameters_changed() divides anew, states included; new parameters join the first group. A step that meets a change without
// that call fails everywhere.
//
// The DataParallel object must outlive this one, and has at most one. CPU only. Not thread-safe.
class ShardedOptimizer {
 public:
  // parts: one for every trained parameter, under its name and in the same order on every rank: a 1-d view of the elements, in memory
  // order, that this rank steps (with master weights a copy of them); empty where it has none. They stay the same tensors for good. The
  // optimiser may leave some out, and put them in several groups, alike on every rank.
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<NamedTensor>& parts)>;

  // Before the first backward. Throws InputError under another strategy, if there is one already, and for an optimiser of another kind or
  // with other tensors.
  ShardedOptimizer(DataParallel& ddp, const MakeOptimizer& make_optimizer, const ShardedOptions& options = {});
  // Waits for parameters on their way, unless the group is lost.
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Collective. Does nothing after a step that failed. Throws GroupError if a collective failed or the optimiser threw.
  void step();

  // Between backward and step(), on every rank: scales the gradients of all parts so that their global norm is at most max_norm. Returns
  // the norm before. Collective. Throws GroupError if a collective failed.
  double clip_gradients(double max_norm);

  // Of this rank's parts: for options and schedulers. To skip a step on every rank, zero_grad() it before step().
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // The whole state and the options into `whole`, an optimiser of the same kind over the module's parameters in the same groups: then
  // torch::save(whole, ...) writes what a plain optimiser would. Collective; every rank gets all of it. Throws InputError if `whole` does
  // not fit, GroupError if a collective failed.
  void gather_into(torch::optim::Optimizer& whole);
  // The reverse: this rank's parts of the state, for any number of ranks. Not collective. Throws InputError if `whole` does not fit.
  void load_from(const torch::optim::Optimizer& whole);

  // The masters in float32, under their parameters' names and in their shapes, for a checkpoint: parameters alone are rounded. Collective;
  // every rank gets all of them. Throws GroupError if a collective failed.
  std::vector<NamedTensor> gather_masters();
  // The reverse, after the parameters themselves. Not collective. Throws InputError for a name or a shape that is not there.
  void load_masters(const std::vector<NamedTensor>& masters);

 private:
  Sharded* sharded_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace firkin
