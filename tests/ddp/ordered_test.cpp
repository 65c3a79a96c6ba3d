// The strategy ordered: in what order gradients leave, and what a step does while some are still on their way (late_test.cpp: that it
// trains as bucketed).
#include "firkin/base/error.h"
#include "late_programs.h"

namespace firkin {
namespace {

using testing::HasSubstr;

TEST(Ordered, TrainsAsOneProcessOnOneToFourRanks) {
  for (const auto& [optimizer, world_size] : {std::pair("SGD", 1), {"AdamW", 2}, {"AdamW", 3}, {"SGD", 4}}) {
    const TrainingSetup setup{.strategy = "ordered", .optimizer = optimizer};
    const Tensors alone = train_on_ranks(1, under({"none"}, setup))[0][0].parameters;
    const TrainedRanks ranks = train_on_ranks(world_size, {setup}, kLateLink)[0];
    expect_equal_ranks(ranks);
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::allclose(ranks[0].parameters[i], alone[i], 1e-9, 1e-9));
  }
}

std::vector<int64_t> launch_order(std::optional<double> slack) {
  const auto set = [&](DataParallelOptions& options) { options.launch_slack = slack; };
  const BucketPlan plan = train_on_ranks(2, {{.strategy = "ordered", .set = set}}, kLateLink)[0][0].plan;
  EXPECT_GT(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.launch_order.size(), plan.buckets.size());
  return plan.launch_order;
}

// The embedding's gradient is ready last and needed first: over a slow link others still wait then.
TEST(Ordered, LaunchesEarlyLayersFirstOnceBackwardIsOverWithTheSlackThatItIsGiven) {
  const std::vector<int64_t> chosen = launch_order({}), by_need = launch_order(0), as_ready = launch_order(1e9);
  const auto last = static_cast<int64_t>(by_need.size()) - 1;
  EXPECT_NE(chosen.back(), last);
  EXPECT_EQ(by_need.front(), last);
  EXPECT_EQ(as_ready.back(), last);
}

TEST(Ordered, TakesAPlanInAnyLaunchOrder) {
  const auto tensors = static_cast<int64_t>(trainable_parameters(*make_test_model("transformer", at::kFloat).module).size());
  const BucketPlan plan{{{0, 1}, {1, 2}, {3, tensors - 4}, {tensors - 1, 1}}, {1, 3, 0, 2}};
  for (const bool compresses : {false, true}) {
    const auto set = [&](DataParallelOptions& options) {
      if (options.strategy.name != "bucketed") options.plan = plan;
      if (compresses) options.gradient_hook = bf16_compression();
    };
    const auto trained =
        train_on_ranks(2, under({"bucketed", "ordered", "planned"}, {.dtype = at::kFloat, .steps = 8, .set = set}), kLateLink);
    for (const TrainedRanks& ranks : trained) {
      expect_equal_ranks(ranks);
      EXPECT_TRUE(same_bits(ranks[0].parameters, trained[0][0].parameters));
    }
    EXPECT_GT(trained[1][0].late, 0);
  }
}

constexpr int kStepsToLearn = 3;  // after them gradients may come late

TEST(Ordered, LeavesOnlyWhatIsAwaitedOnItsWay) {
  const auto one_tensor_each = [](DataParallelOptions& options) { options.cap.cap_bytes = 1; };  // what is not awaited is waited for
  run_late("ordered",
           [](Place& place) {
             for (int step = 0; step < kStepsToLearn + 2; ++step) {
               place.backward(step);
               EXPECT_TRUE(place.net.head->weight.grad().defined()) << "step " << step;
               if (step >= kStepsToLearn) {
                 EXPECT_FALSE(place.net.body->layers[0]->weight.grad().defined());
               }
               place.training.step();
             }
             int64_t awaited = 0;
             for (const at::Tensor& parameter : place.net.body->parameters()) awaited += static_cast<int64_t>(parameter.nbytes());
             EXPECT_EQ(place.training.ddp.stats().awaited_bytes, awaited);
             EXPECT_GT(place.training.ddp.stats().forward_wait_s, 0);
           },
           {.set = one_tensor_each});
}

TEST(OrderedAndSharded, AModuleThatStopsAwaitingFailsTheStepOnAllRanks) {
  for (const char* strategy : {"ordered", "sharded"}) {
    const std::vector<Tensors> ranks = run_late(strategy, [](Place& place) {
      place.train(0, kStepsToLearn + 2);
      std::vector<Layer>& layers = place.net.body->layers;
      const at::Tensor first = layers[0]->forward(place.batch(5));
      const bool awaits = place.group.rank != 1;
      const at::Tensor second = awaits ? layers[1]->forward(first) : torch::tanh(at::matmul(first, layers[1]->weight) + layers[1]->bias);
      place.training.zero_grad();
      EXPECT_THAT(message_of<RuntimeError>([&] { place.net.head->forward(layers[2]->forward(second)).mean().backward(); }),
                  HasSubstr("second did not call await_parameters()"));
      EXPECT_EQ(place.training.ddp.last_failure()->rank, 1);
      place.train(6);
      EXPECT_FALSE(place.training.ddp.last_failure());
    });
    EXPECT_TRUE(same_bits(ranks[0], ranks[1])) << strategy;
  }
}

TEST(Ordered, PlainOptimizerStepsAreNotSilentlyWithoutEffect) {
  run_late("ordered", [](Place& place) {
    std::string error;
    for (int step = 0; step < kStepsToLearn + 2 && error.empty(); ++step) {
      error = message_of<RuntimeError>([&] {
        place.backward(step);
        place.training.plain->step();
      });
    }
    EXPECT_THAT(error, HasSubstr("OverlappedOptimizer::step()"));
  });
}

TEST(Ordered, GradientsAreThereAfterADrainBeforeTheStep) {
  run_late("ordered", [](Place& place) {
    place.train(0, kStepsToLearn);
    place.backward(kStepsToLearn);
    EXPECT_FALSE(place.net.body->layers[0]->weight.grad().defined());
    place.training.overlapped->drain();
    for (const at::Tensor& parameter : place.net.parameters()) EXPECT_TRUE(parameter.grad().defined());
    place.training.step();
  });
}

TEST(Ordered, SeveralOptimizersAndParametersOfNobodyElseStepOnceEach) {
  expect_as_bucketed(std::vector<std::string>{"ordered"}, [](Place& place) {
    place.training.overlapped.reset();
    at::Tensor scale = at::ones({}, at::kDouble).requires_grad_();  // not of the module
    Tensors some = place.net.body->layers[0]->parameters(), others = place.net.head->parameters();
    some.push_back(scale);
    for (size_t layer : {1, 2}) {
      for (const at::Tensor& parameter : place.net.body->layers[layer]->parameters()) others.push_back(parameter);
    }
    torch::optim::SGD sgd(some, torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::AdamW adam(others, torch::optim::AdamWOptions(0.01));
    OverlappedOptimizer first(place.training.ddp, sgd);
    OverlappedOptimizer second(place.training.ddp, adam);
    for (int step = 0; step < 8; ++step) {
      (place.loss(step) + scale * step).backward();
      first.step();
      second.step();
      sgd.zero_grad();
      adam.zero_grad();
    }
    place.also = {scale.detach().clone()};
  });
}

TEST(Ordered, RefusesAnOptimizerThatNeedsAllGradientsTogether) {
  run_late("ordered", [](Place& place) {
    place.train(0, kStepsToLearn);
    place.training.overlapped.reset();
    place.backward(kStepsToLearn);
    torch::optim::LBFGS lbfgs(place.net.parameters(), torch::optim::LBFGSOptions(0.1));
    OverlappedOptimizer overlapped(place.training.ddp, lbfgs);
    EXPECT_THROW(overlapped.step(), InputError);
    overlapped.drain();
  });
}

TEST(Ordered, ALostGroupComesOutOfTheForwardThatAwaits) {
  run_linked_ranks(2, kLateLink, [](const ProcessGroup& group) {
    Place place(group, "ordered", {});
    place.train(0, kStepsToLearn);
    if (group.rank == 1) {
      EXPECT_THROW(give_up(group, "on purpose"), GroupError);
      return;
    }
    EXPECT_THROW(place.train(3, 6), GroupError);
    EXPECT_THROW(place.backward(6), GroupError);
  });
}

TEST(Ordered, AwaitingIsHarmlessWhereNothingIsWrapped) {
  HeadedNet net;
  net.forward(batch_of(0, 0, at::kDouble)).mean().backward();
  EXPECT_TRUE(net.body->layers[0]->weight.grad().defined());
}

}  // namespace
}  // namespace firkin
