#include "bench/ready_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "small_workload.h"

namespace firkin {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> names_of(const LayerProfile& profile) {
  std::vector<std::string> names;
  for (const LayerRow& layer : profile.times.layers) names.push_back(layer.name);
  return names;
}

TEST(LayerOf, IsTheFirstNumberedPartOrTheFirstPart) {
  EXPECT_EQ(layer_of("blocks.3.attn.q.weight"), "blocks.3");
  EXPECT_EQ(layer_of("encoder.layers.11.mlp.0.weight"), "encoder.layers.11");
  EXPECT_EQ(layer_of("0.weight"), "0");
  EXPECT_EQ(layer_of("lm_head.weight"), "lm_head");
  EXPECT_EQ(layer_of("weight"), "weight");
  EXPECT_EQ(layer_of("blocks.3"), "blocks.3");
}

TEST(LayerBench, SplitsBackwardAmongTheLayersThatHaveParameters) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const LayerProfile profile = measure_layers(group, workload, {.steps = 6, .observe_forward = {}, .on_progress = {}});
    EXPECT_THAT(names_of(profile), ElementsAre("0", "2", "4"));
    EXPECT_EQ(profile.times.layers[0].parameters, 32 * 32 + 32);
    EXPECT_EQ(profile.times.layers[2].parameters, 33);
    EXPECT_THAT(profile.times.backward_s, SizeIs(6));
    EXPECT_THAT(profile.times.optimizer_s, SizeIs(6));
    for (const LayerRow& layer : profile.times.layers) {
      EXPECT_THAT(layer.forward_s, IsEmpty());
      EXPECT_THAT(layer.backward_s, SizeIs(6));
      EXPECT_THAT(layer.backward_s, Each(Ge(0)));
    }
    check_profile(profile.tensors);
    EXPECT_EQ(profile.tensors.names.back(), "0.weight");
    EXPECT_THAT(profile.times.bare_step_s, SizeIs(6));
  });
}

TEST(LayerBench, TheLayersOfOneRankMakeUpItsBackward) {
  run_ranks(1, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const LayerProfile profile = measure_layers(group, workload, {.steps = 5, .observe_forward = {}, .on_progress = {}});
    for (size_t step = 0; step < 5; ++step) {
      double layers_s = 0;
      for (const LayerRow& layer : profile.times.layers) layers_s += layer.backward_s[step];
      EXPECT_LE(layers_s, profile.times.backward_s[step]);
    }
  });
}

// A model that tells of its layers, the second of which takes `pause` longer.
Workload observed_workload(std::shared_ptr<ForwardObserver> observer, std::chrono::milliseconds pause) {
  torch::nn::Linear first(8, 8), head(8, 1);
  torch::nn::Sequential net(first, head);
  Workload workload;
  workload.module = net.ptr();
  workload.parameters = net->parameters();
  workload.loss = [first, head, observer, pause](int64_t) mutable {
    const auto done = [&observer](const char* layer) {
      if (*observer) (*observer)(layer);
    };
    done("");
    at::Tensor x = first->forward(at::ones({2, 8}));
    done("0");
    x = head->forward(x);
    if (*observer) std::this_thread::sleep_for(pause);
    done("1");
    x = x * 2;
    done("tied");
    return x.mean();
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.001);
  return workload;
}

TEST(LayerBench, TakesForwardTimesFromTheModelAndSeesWhatWatchingCosts) {
  run_ranks(1, [](const ProcessGroup& group) {
    const auto observer = std::make_shared<ForwardObserver>();
    constexpr auto kPause = std::chrono::milliseconds(20);
    Workload workload = observed_workload(observer, kPause);
    const LayerProfile profile = measure_layers(
        group, workload,
        {.steps = 4, .observe_forward = [observer](ForwardObserver given) { *observer = std::move(given); }, .on_progress = {}});
    EXPECT_FALSE(*observer);
    EXPECT_THAT(names_of(profile), ElementsAre("0", "1", "tied"));
    EXPECT_THAT(profile.times.layers[1].forward_s, Each(Ge(0.02)));
    EXPECT_THAT(profile.times.layers[2].forward_s, SizeIs(4));
    EXPECT_THAT(profile.times.layers[2].backward_s, IsEmpty());
    EXPECT_GT(profile.watched_to_bare.ratio, 1.03);  // only watched steps pause
  });
}

TEST(LayerBench, RefusesAModelWithoutParametersAndNoSteps) {
  run_ranks(1, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    EXPECT_THROW(measure_layers(group, workload, {.steps = 0, .observe_forward = {}, .on_progress = {}}), InputError);
    Workload empty;
    empty.module = torch::nn::Sequential(torch::nn::ReLU()).ptr();
    EXPECT_THROW(measure_layers(group, empty, {.observe_forward = {}, .on_progress = {}}), InputError);
  });
}

}  // namespace
}  // namespace firkin
