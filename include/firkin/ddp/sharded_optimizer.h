// A sharded optimiser: under the strategy `sharded`, each of P ranks steps its part of every bucket and keeps 1/P of
// the state.
//
//   DataParallel ddp(*net, group, {.strategy = find_strategy("sharded")});
//   ShardedOptimizer sharded(ddp, [](const std::vector<NamedTensor>& parts) {
//     return std::make_unique<torch::optim::AdamW>(tensors_of(parts), 1e-3);
//   });
//   for (auto& batch : my_part_of_the_data) {
//     loss(net->forward(batch.x), batch.y).backward();  // modules call await_parameters(*this) in forward
//     sharded.step();
//   }
//   evaluate(ddp.module());  // waits for parameters in flight
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "firkin/ddp/data_parallel.h"

#include <torch/optim/optimizer.h>

namespace firkin {

struct ShardedOptions {
  // Steps float32 copies of each part in lower precision; without them an update below half the distance to the next
  // value would be lost (Micikevicius et al. 2018, "Mixed precision training", 3.1). Costs 4 bytes a parameter, divided
  // by the number of ranks; the part's gradient and state are in float32 too. A value that the program writes into a
  // parameter reaches its master with the next step().
  bool master_weights = false;
  // Divides buckets between parameters: each is stepped whole, in its shape, by one rank, for optimisers that do not
  // work element by element, such as a subclass with the options of one of LibTorch's. Ranks' parts of a bucket then
  // have unequal sizes, and a rank up to one largest parameter more than its share.
  bool whole_parameters = false;
};

// Each bucket is divided among the ranks, evenly unless by whole parameters. Backward gives every rank the averaged
// gradient of its part; step() steps the part, and sends it to the others bucket by bucket, in the order in which the
// first forward used the parameters. A module that awaits its parameters (await_parameters.h) lets this continue behind
// the layers before it; without awaits step() waits for all. The optimiser must work element by element: LibTorch's
// SGD, Adam, AdamW, RMSprop or Adagrad. On two ranks parameters equal those of `bucketed` to the last bit.
//
// Parameters' gradients are undefined after every step; a rank has only part.tensor.grad(). A failed step leaves none.
// Every rank must call step() after each successful step; otherwise the next one fails everywhere. If the optimiser
// throws on a rank, the group is lost: the others would wait for its parameters.
//
// DataParallel::parameters_changed() divides parameters and states again; new parameters join the first group. A step
// that meets a change without that call fails everywhere.
//
// The DataParallel object must outlive this one, and has at most one. Not thread-safe.
class ShardedOptimizer {
 public:
  // parts: one for every trained parameter, under its name and in the same order on every rank: a 1-d view of the
  // elements, in memory order, that this rank steps (a copy of them with master weights), or a view of the parameter
  // itself with whole_parameters; empty if it has none. They stay the same tensors. The optimiser may leave some out
  // and put them in several groups, alike on every rank.
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<NamedTensor>& parts)>;

  // Call it before the first backward, on every rank: collective. Throws InputError under another strategy, if `ddp`
  // already has one, if ranks differ in the options, and for an unsupported optimiser or one with other tensors;
  // GroupError if a rank did not call it.
  ShardedOptimizer(DataParallel& ddp, const MakeOptimizer& make_optimizer, const ShardedOptions& options = {});
  // Waits for parameters in flight, unless the group is lost.
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Collective. Does nothing after a failed step. Throws GroupError if a collective failed or the optimiser threw.
  void step();

  // Between backward and step(), on every rank: scales the gradients of all parts so that their global norm is at most
  // max_norm. Returns the norm before. Collective. Throws GroupError if a collective failed.
  double clip_gradients(double max_norm);

  // The optimiser of this rank's parts: for options and schedulers. To skip a step on every rank, call its zero_grad()
  // before step().
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // Copies the whole state and the options into `whole`, an optimiser of the same class over the module's parameters in
  // the same groups; torch::save(whole, ...) then writes what a plain optimiser would. Collective; every rank gets all
  // of it, or rank `to` alone: the others hold one tensor of it at a time, and their `whole` has the options only.
  // Throws InputError if `whole` does not fit, GroupError if a collective failed.
  void gather_into(torch::optim::Optimizer& whole, std::optional<int> to = {});
  // The reverse: this rank's parts of the state, for any number of ranks. Not collective. Throws InputError if `whole`
  // does not fit.
  void load_from(const torch::optim::Optimizer& whole);

  // The masters in float32, under their parameters' names and in their shapes, for a checkpoint: parameters alone are
  // rounded. Collective; every rank gets all of them, or rank `to` alone, and the others none. Throws GroupError if a
  // collective failed.
  std::vector<NamedTensor> gather_masters(std::optional<int> to = {});
  // The reverse, after the parameters themselves. Not collective. Throws InputError for an unknown
  // name or another shape.
  void load_masters(const std::vector<NamedTensor>& masters);

 private:
  Sharded* sharded_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace firkin
