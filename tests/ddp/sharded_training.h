// A training under any strategy: with a plain optimiser of the whole parameters, or sharded with one of the parts.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "tensors.h"

#include <torch/torch.h>

namespace firkin {

// A link over which the test models' parameters are still on their way when the next forward begins.
inline constexpr const char* kLateLink = "8mbit,200us";

inline constexpr const char* kWhole = "sharded, whole parameters";
inline const std::array<std::string, 2> kSharded = {"sharded", kWhole};

inline DataParallelOptions sharded_options(const std::string& strategy, int64_t cap_bytes = 1500) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy == kWhole ? "sharded" : strategy);
  options.cap = {.cap_bytes = cap_bytes, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  return options;
}

// Of LibTorch; by name. "Groups": SGD in two groups with other options for biases.
inline std::unique_ptr<torch::optim::Optimizer> make_named_optimizer(const std::string& name, const std::vector<NamedTensor>& parameters) {
  using namespace torch::optim;
  const Tensors tensors = tensors_of(parameters);
  if (name == "AdamW") return std::make_unique<AdamW>(tensors, AdamWOptions(1e-3).amsgrad(true));
  if (name == "Adam") return std::make_unique<Adam>(tensors, AdamOptions(1e-3));
  if (name == "RMSprop") return std::make_unique<RMSprop>(tensors, RMSpropOptions(1e-3).momentum(0.5).centered(true));
  if (name == "Adagrad") return std::make_unique<Adagrad>(tensors, AdagradOptions(1e-2));
  if (name == "Plain") return std::make_unique<SGD>(tensors, SGDOptions(0.5));
  if (name != "Groups") return std::make_unique<SGD>(tensors, SGDOptions(0.1).momentum(0.9));
  std::vector<OptimizerParamGroup> groups(2, OptimizerParamGroup({}, std::make_unique<SGDOptions>(SGDOptions(0.1).momentum(0.9))));
  dynamic_cast<SGDOptions&>(groups[1].options()).lr(0.02).momentum(0);
  for (const auto& [each, tensor] : parameters) groups[each.ends_with("bias") ? 1 : 0].params().push_back(tensor);
  return std::make_unique<SGD>(groups, SGDOptions(0.1));
}

class ShardedTraining {
 public:
  ShardedTraining(torch::nn::Module& module, const ProcessGroup& group, const DataParallelOptions& options, const std::string& optimizer,
                  const ShardedOptions& sharded_options = {})
      : ddp(module, group, options) {
    if (options.strategy.shards) {
      const auto make = [&](const std::vector<NamedTensor>& parts) { return make_named_optimizer(optimizer, parts); };
      sharded.emplace(ddp, make, sharded_options);
    } else {
      plain = make_named_optimizer(optimizer, trainable_parameters(module));
    }
  }
  void step() { sharded ? sharded->step() : void(plain->step()); }
  double clip(double max_norm) {
    if (sharded) return sharded->clip_gradients(max_norm);
    return torch::nn::utils::clip_grad_norm_(plain->param_groups()[0].params(), max_norm);
  }
  torch::optim::Optimizer& optimizer() { return sharded ? sharded->optimizer() : *plain; }
  void zero_grad() { ddp.module().zero_grad(); }

  std::unique_ptr<torch::optim::Optimizer> plain;
  DataParallel ddp;
  std::optional<ShardedOptimizer> sharded;
};

}  // namespace firkin
