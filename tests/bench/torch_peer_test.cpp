// c10d::Reducer as experiments have it, and that our buckets compute what it computes.

#include "bench/torch_peer.h"
#include "../ddp/known_gradients.h"
#include "../pairwise.h"
#include "../test.h"
#include "bench/step_runner.h"

namespace firkin {
namespace {

constexpr int kSteps = 5;

struct Module : Parameters {
  Module() : Parameters({4, 4, 4}) {}
  at::Tensor seen = register_buffer("seen", at::zeros({2}));
};

DataParallelOptions with_caps(const CapOptions& cap, const std::vector<int64_t>& ready_order = {}) {
  DataParallelOptions options;
  options.cap = cap;
  options.ready_order = ready_order;
  return options;
}

// On two ranks, 16 bytes a bucket.
void on_two_ranks(const std::function<void(const ProcessGroup&, const DataParallelOptions&)>& body) {
  run_ranks(2, [&](const ProcessGroup& group) { body(group, with_caps({.cap_bytes = 16})); });
}

TEST(TorchPeer, GradientsAreTheMeanOverTheRanksWhenBackwardReturns) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Module module;
    TorchPeer peer(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      peer.prepare();
      module.loss(rank_value(group)).backward();
      module.expect_gradients(kMean);
      peer.rebuild_buckets();
    }
  });
}

TEST(TorchPeer, ABackwardThatIsNotPreparedStaysOnItsRank) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Module module;
    TorchPeer peer(module, group, options);
    for (int micro = 0; micro < 3; ++micro) {
      if (micro == 2) peer.prepare();
      module.loss(rank_value(group)).backward();
      module.expect_gradients(micro < 2 ? (micro + 1) * rank_value(group) : 3 * kMean);
    }
  });
}

TEST(TorchPeer, RanksBeginWithRank0sParametersAndItsBuffersComeBeforeEveryStep) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Module module;
    {
      const at::NoGradGuard no_grad;
      module.all[1].fill_(5.0 + group.rank);
      module.seen.fill_(7.0 + group.rank);
    }
    TorchPeer peer(module, group, options);
    EXPECT_TRUE(at::equal(module.all[1], at::full({4}, 5.0)));
    EXPECT_TRUE(at::equal(module.seen, at::full({2}, 7.0)));
    module.seen.fill_(9.0 + group.rank);
    peer.prepare();
    EXPECT_TRUE(at::equal(module.seen, at::full({2}, 9.0)));
    module.loss(rank_value(group)).backward();
  });
}

TEST(TorchPeer, BucketsAreFilledInReadyOrder) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    TorchPeer peer(module, group, with_caps({.cap_bytes = 32, .first_cap_bytes = 16}));
    EXPECT_THAT(peer.bucket_bytes(), ElementsAre(16, 32));
    const TorchPeer other(module, group, with_caps({.cap_bytes = 32}, {1, 0, 2}));
    EXPECT_THAT(other.bucket_bytes(), ElementsAre(32, 16));
  });
}

TEST(TorchPeer, AModuleWithoutParametersIsRefused) {
  run_ranks(1, [](const ProcessGroup& group) {
    const torch::nn::Tanh nothing;
    EXPECT_THROW(TorchPeer(*nothing, group, {}), InputError);
  });
}

// Model, optimiser, dtype, ranks.
using Setup = std::tuple<std::string, std::string, at::ScalarType, int>;

Trained train_on_ranks(const char* strategy, const Setup& setup) {
  const auto& [name, optimizer, dtype, world_size] = setup;
  const auto train = [&, &name = name, &optimizer = optimizer, &dtype = dtype](const ProcessGroup& group) {
    const TestModel model = make_test_model(name, dtype);
    const int64_t share = kGlobalBatch / group.size;
    Workload workload;
    workload.module = model.module;
    workload.parameters = model.module->parameters();
    workload.loss = [&](int64_t step) { return model.loss(static_cast<int>(step), group.rank * share, share); };
    workload.optimizer = make_named_optimizer(optimizer, trainable_parameters(*model.module));
    DataParallelOptions options = with_caps({.cap_bytes = 1500});
    options.strategy = find_strategy(strategy);
    StepRunner runner(group, workload, options);
    Trained trained;
    for (int step = 0; step < kSteps; ++step) {
      runner.step(step);
      if (step > 0) continue;
      for (const at::Tensor& p : workload.parameters) {
        if (p.requires_grad()) trained.first_gradients.push_back(p.grad().clone());
      }
    }
    trained.parameters = copies(workload.parameters);
    return trained;
  };
  return results_of(world_size, train)[0];
}

class OurBuckets : public testing::TestWithParam<Setup> {};

// Up to two ranks, where a sum has one order only, to the last bit.
TEST_P(OurBuckets, ComputeWhatTorchsReducerComputes) {
  const Trained ours = train_on_ranks("bucketed", GetParam()), theirs = train_on_ranks("torch", GetParam());
  EXPECT_LE(relative_difference(ours.first_gradients, theirs.first_gradients), 1e-6);
  if (std::get<int>(GetParam()) <= 2) {
    EXPECT_TRUE(same_bits(ours.parameters, theirs.parameters));
  }
}

const std::vector<std::string> kOptimizers = {"SGD", "AdamW"};
const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat};
const std::vector<int> kWorlds = {1, 2, 3, 4};
std::string name_of_setup(const testing::TestParamInfo<Setup>& info) {
  const auto& [model, optimizer, dtype, world_size] = info.param;
  return fmt::format("{}{}With{}On{}", model, c10::toString(dtype), optimizer, world_size);
}
INSTANTIATE_TEST_SUITE_P(Pairs, OurBuckets, ValuesIn(pairwise(test_model_names(), kOptimizers, kDtypes, kWorlds)), name_of_setup);
INSTANTIATE_TEST_SUITE_P(Full, OurBuckets,
                         Combine(ValuesIn(test_model_names()), ValuesIn(kOptimizers), ValuesIn(kDtypes), ValuesIn(kWorlds)), name_of_setup);

}  // namespace
}  // namespace firkin
