#include "bench/ready_profile.h"

#include "../comm/thread_ranks.h"
#include "../test.h"
#include "bench/step_bench.h"
#include "bench/step_runner.h"
#include "small_workload.h"

namespace firkin {
namespace {

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
  return workload_of(net.ptr(), [first, head, observer, pause](int64_t) mutable {
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
  });
}

TEST(LayerBench, TakesForwardTimesFromTheModelAndSeesWhatWatchingCosts) {
  run_ranks(1, [](const ProcessGroup& group) {
    const auto observer = std::make_shared<ForwardObserver>();
    constexpr auto kPause = std::chrono::milliseconds(50);
    Workload workload = observed_workload(observer, kPause);
    const LayerProfile profile = measure_layers(
        group, workload,
        {.steps = 4, .observe_forward = [observer](ForwardObserver given) { *observer = std::move(given); }, .on_progress = {}});
    EXPECT_FALSE(*observer);
    EXPECT_THAT(names_of(profile), ElementsAre("0", "1", "tied"));
    EXPECT_THAT(profile.times.layers[1].forward_s, Each(Ge(0.05)));
    EXPECT_THAT(profile.times.layers[2].forward_s, SizeIs(4));
    EXPECT_THAT(profile.times.layers[2].backward_s, IsEmpty());
    EXPECT_GT(profile.watched_to_bare.ratio, 1.03);  // only watched steps pause
  });
}

TEST(ReadyProfile, ListsTheModulesTensorsInTheOrderOfBackward) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const MeasuredProfile profile = measure_ready_profile(group, workload, {.steps = 6, .on_progress = {}});
    check_profile(profile.tensors);
    EXPECT_THAT(profile.tensors.bytes, ElementsAre(4, 128, 128, 4096, 128, 4096));
    EXPECT_EQ(profile.tensors.names.back(), "0.weight");
    EXPECT_GT(profile.bare_backward_s.value(), 0);
    for (const at::Tensor& p : workload.module->parameters()) EXPECT_FALSE(p.grad().defined());
    DataParallel wrapping_still_works(*workload.module, group);
  });
}

TEST(StepBench, TimesStepsThatReachIntoOneAnotherByTheirMean) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    int steps = 0;
    workload.loss = [&steps, loss = workload.loss](int64_t step) {
      ++steps;
      return loss(step);
    };
    DataParallelOptions options;
    options.strategy = find_strategy("ordered");
    options.cap.cap_bytes = 4096;
    const std::vector<SettingSteps> result = measure_steps(group, workload, {{"ordered", options}}, {.blocks = {.most = 1}});
    EXPECT_EQ(steps, 1 + steps_to_learn(options) + 4);
    ASSERT_THAT(result[0].raw_step_s, SizeIs(2));
    EXPECT_EQ(result[0].raw_step_s[0], result[0].raw_step_s[1]);
  });
}

TEST(StepBench, MeasuresEverySettingOnceABlock) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    std::vector<StepSetting> settings;
    for (const char* name : {"none", "naive", "flat", "overlap", "bucketed", "torch"}) {
      DataParallelOptions options;
      options.strategy = find_strategy(name);
      options.cap.cap_bytes = 4096;
      settings.push_back({name, options});
    }
    int progress = 0;
    std::vector<size_t> blocks;
    StepBenchOptions options{.blocks = {.most = 3}, .on_progress = [&](const std::string&) { ++progress; }};
    options.is_enough = [&](const std::vector<SettingSteps>& so_far) {
      for (const SettingSteps& setting : so_far) EXPECT_THAT(setting.step_s, SizeIs(blocks.size() + 1));
      blocks.push_back(so_far[0].step_s.size());
      return false;
    };
    const std::vector<SettingSteps> result = measure_steps(group, workload, settings, options);
    EXPECT_EQ(progress, 18);
    EXPECT_THAT(blocks, ElementsAre(1, 2, 3));
    std::vector<int64_t> buckets;
    for (const SettingSteps& setting : result) {
      EXPECT_THAT(setting.step_s, SizeIs(3));
      EXPECT_THAT(setting.step_s, Each(Gt(0)));
      EXPECT_THAT(setting.raw_step_s, SizeIs(6));
      EXPECT_THAT(setting.raw_step_s, Each(SizeIs(2)));
      buckets.push_back(setting.buckets);
    }
    EXPECT_THAT(buckets, ElementsAre(0, 6, 1, 6, 2, 2));
  });
}

}  // namespace
}  // namespace firkin
