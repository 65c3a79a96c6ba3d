// A training under any strategy: with an optimiser of the whole parameters, or sharded with one of the parts.
#pragma once

#include "../comm/thread_ranks.h"
#include "../torch.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "tensors.h"
#include "test_models.h"

namespace firkin {

// A link over which the test models' gradients or parameters are still on their way when the next forward begins.
inline constexpr const char* kLateLink = "16mbit,200us";

inline constexpr const char* kWhole = "sharded, whole parameters";
inline const std::array<std::string, 2> kSharded = {"sharded", kWhole};

inline DataParallelOptions with_strategy(const std::string& strategy, int64_t cap_bytes = 1500) {
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

class Training {
 public:
  Training(torch::nn::Module& module, const ProcessGroup& group, const DataParallelOptions& options, const std::string& optimizer = "SGD",
           const ShardedOptions& sharded_options = {})
      : ddp(module, group, options) {
    if (options.strategy.shards) {
      const auto make = [&](const std::vector<NamedTensor>& parts) { return make_named_optimizer(optimizer, parts); };
      sharded.emplace(ddp, make, sharded_options);
    } else {
      plain = make_named_optimizer(optimizer, trainable_parameters(module));
      overlapped.emplace(ddp, *plain);
    }
  }
  void step() { sharded ? sharded->step() : overlapped->step(); }
  double clip(double max_norm) { return sharded ? sharded->clip_gradients(max_norm) : overlapped->clip_gradients(max_norm); }
  torch::optim::Optimizer& optimizer() { return sharded ? sharded->optimizer() : *plain; }
  // Those that have come; sharded has none.
  void zero_grad(bool to_none = true) {
    if (plain) plain->zero_grad(to_none);
  }

  std::unique_ptr<torch::optim::Optimizer> plain;
  DataParallel ddp;
  std::optional<ShardedOptimizer> sharded;        // or
  std::optional<OverlappedOptimizer> overlapped;  // of `plain`
};

// How a test model is trained, on every rank's part of each global batch.
struct TrainingSetup {
  std::string strategy = "bucketed";
  std::string model = "transformer";
  std::string optimizer = "SGD";
  at::ScalarType dtype = at::kDouble;
  int steps = 12;
  int micro_batches = 1;
  bool zeroes_in_place = false;
  double max_norm = 0;  // of the gradients; 0: not clipped
  std::function<void(DataParallelOptions&)> set = {};
};

// What a rank's training ends with.
struct Trained {
  Tensors first_gradients;  // of the first step: at the same parameters in every run
  Tensors parameters;
  int64_t late = 0;            // parameters that changed after step() had returned, in every fourth step
  int64_t state_elements = 0;  // of SGD and AdamW
  BucketPlan plan;
  DataParallelStats stats;
};

inline int64_t elements_of_state(const torch::optim::Optimizer& optimizer) {
  int64_t elements = 0;
  for (const auto& [tensor, state] : optimizer.state()) {
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(state.get())) elements += sgd->momentum_buffer().numel();
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(state.get())) elements += adam->exp_avg().numel();
  }
  return elements;
}

inline Trained train(const ProcessGroup& group, const TrainingSetup& setup) {
  TestModel model = make_test_model(setup.model, setup.dtype);
  if (group.rank != 0 && setup.strategy != "none") {
    for (at::Tensor& parameter : model.module->parameters()) parameter.detach().zero_();  // rank 0's values must arrive
  }
  DataParallelOptions options = with_strategy(setup.strategy);
  if (setup.set) setup.set(options);
  Training training(*model.module, group, options, setup.optimizer, {.whole_parameters = setup.strategy == kWhole});
  const int64_t local = kGlobalBatch / group.size / setup.micro_batches;
  const int64_t first = group.rank * local * setup.micro_batches;
  Trained trained;
  for (int step = 0; step < setup.steps; ++step) {
    training.zero_grad(!setup.zeroes_in_place);
    for (int micro = 0; micro < setup.micro_batches; ++micro) {
      training.ddp.set_gradient_synchronization(micro == setup.micro_batches - 1);
      (model.loss(step, first + micro * local, local) / setup.micro_batches).backward();
    }
    for (const at::Tensor& parameter : model.module->parameters()) {
      if (step == 0 && parameter.grad().defined()) trained.first_gradients.push_back(parameter.grad().clone());
    }
    if (setup.max_norm > 0) training.clip(setup.max_norm);
    training.step();
    for (auto& groups : training.optimizer().param_groups()) {
      groups.options().set_lr(groups.options().get_lr() * 0.99);  // of the steps to come, not of this one
    }
    if (step % 4 != 3) continue;
    const Tensors at_step_end = copies(model.module->parameters());
    for (size_t i = 0; const at::Tensor& parameter : training.ddp.module().parameters()) {
      trained.late += at::equal(parameter, at_step_end[i++]) ? 0 : 1;
    }
  }
  trained.parameters = copies(training.ddp.module().parameters());
  trained.state_elements = elements_of_state(training.optimizer());
  trained.plan = training.ddp.plan();
  trained.stats = training.ddp.stats();
  if (setup.strategy != "none") {
    EXPECT_EQ(trained.stats.steps, setup.steps);
  }
  return trained;
}

using TrainedRanks = std::vector<Trained>;

// Of each setup: all on one group, because making it takes longer than most trainings. link: empty, or a modelled one.
inline std::vector<TrainedRanks> train_on_ranks(int world_size, const std::vector<TrainingSetup>& setups, const std::string& link = "") {
  std::vector<TrainedRanks> result(setups.size(), TrainedRanks(static_cast<size_t>(world_size)));
  run_linked_ranks(world_size, link, [&](const ProcessGroup& group) {
    for (size_t i = 0; i < setups.size(); ++i) result[i][static_cast<size_t>(group.rank)] = train(group, setups[i]);
  });
  return result;
}

// The same setup under each of these strategies.
inline std::vector<TrainingSetup> under(const std::vector<std::string>& strategies, TrainingSetup setup) {
  std::vector<TrainingSetup> setups;
  for (const std::string& strategy : strategies) {
    setup.strategy = strategy;
    setups.push_back(setup);
  }
  return setups;
}

inline void expect_equal_ranks(const TrainedRanks& ranks) {
  for (const Trained& rank : ranks) EXPECT_TRUE(same_bits(rank.parameters, ranks[0].parameters));
}

}  // namespace firkin
