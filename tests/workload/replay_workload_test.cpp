// A replay on real autograd: what it promises about order, sizes and earliest times, never how late anything is.
#include "workload/workload.h"

#include "../test.h"
#include "ddp/ordered/ordered.h"

#include <torch/nn/module.h>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

// A head, a block and an embedding: ready in this order, needed in reverse.
TensorProfile three_layers() {
  return {.names = {"head.weight", "blocks.0.bias", "blocks.0.weight", "scale"},
          .bytes = {4096, 64, 8192, 4},
          .ready_s = {0.01, 0.02, 0.02, 0.03},
          .backward_s = 0.03,
          .needed_s = {0.012, 0.005, 0.004, 0},
          .update_s = {},
          .forward_s = 0.015};
}

TEST(ReplayWorkload, HasTheTensorsOfTheProfile) {
  const Workload workload = make_replay_workload(three_layers());
  std::vector<std::pair<std::string, int64_t>> tensors;
  for (const auto& parameter : workload.module->named_parameters()) tensors.emplace_back(parameter.key(), parameter.value().nbytes());
  EXPECT_THAT(tensors, UnorderedElementsAre(testing::Pair("head.weight", 4096), testing::Pair("blocks.0.bias", 64),
                                            testing::Pair("blocks.0.weight", 8192), testing::Pair("scale", 4)));
}

TEST(ReplayWorkload, HandsOverGradientsInOrderAndNeverEarly) {
  const TensorProfile profile = three_layers();
  const Workload workload = make_replay_workload(profile);
  std::vector<size_t> order;
  std::vector<Clock::time_point> ready;
  for (size_t i = 0; i < workload.parameters.size(); ++i) {
    workload.parameters[i].register_hook([&, i](const at::Tensor& gradient) {
      EXPECT_EQ(gradient.sizes(), workload.parameters[i].sizes());
      order.push_back(i);
      ready.push_back(Clock::now());
    });
  }
  const at::Tensor loss = workload.loss(0);
  const auto began = Clock::now();
  loss.backward();
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  for (size_t i = 0; i < ready.size(); ++i) {
    EXPECT_GE(std::chrono::duration<double>(ready[i] - began).count(), profile.ready_s[i]);
  }
  for (const at::Tensor& parameter : workload.parameters) EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
}

TEST(ReplayWorkload, ModulesAwaitInTheOrderInWhichForwardNeedsThem) {
  const Workload workload = make_replay_workload(three_layers());
  std::vector<const torch::nn::Module*> heard;
  const AwaitingModules listening(*workload.module, {}, [&heard](const torch::nn::Module& module) { heard.push_back(&module); });
  const auto began = Clock::now();
  workload.loss(0);
  EXPECT_GE(std::chrono::duration<double>(Clock::now() - began).count(), 0.015);
  const auto modules = workload.module->named_modules();
  EXPECT_THAT(heard, ElementsAre(workload.module.get(), modules["blocks.0"].get(), modules["head"].get()));
}

TEST(ReplayWorkload, IsScaled) {
  const TensorProfile half = scaled(three_layers(), {.bytes = 0.1, .time = 2});
  EXPECT_THAT(half.bytes, ElementsAre(408, 8, 820, 4));
  EXPECT_THAT(half.ready_s, ElementsAre(0.02, 0.04, 0.04, 0.06));
  EXPECT_EQ(half.forward_s, 0.03);
  EXPECT_THROW(scaled(three_layers(), {.bytes = 0}), InputError);
}

TEST(ReplayWorkload, RefusesWhatItCannotReplay) {
  TensorProfile profile = three_layers();
  profile.needed_s.clear();
  profile.forward_s = 0;
  EXPECT_THROW(make_replay_workload(profile), InputError);
  profile = three_layers();
  profile.names[3] = "head";  // a module's name
  EXPECT_THROW(make_replay_workload(profile), InputError);
  profile.names[3] = "head.weight.part";  // a module under a tensor
  EXPECT_THROW(make_replay_workload(profile), InputError);
  profile.names[3] = "";
  EXPECT_THROW(make_replay_workload(profile), InputError);
}

}  // namespace
}  // namespace firkin
