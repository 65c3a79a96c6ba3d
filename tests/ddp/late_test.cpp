// The strategies that leave things on their way when a step ends, ordered its gradients and sharded its parameters: they train as bucketed
// does. And of ordered: in what order gradients leave, and what a step does while some are still on their way.

#include "../test.h"
#include "programs.h"
#include "training.h"

namespace firkin {
namespace {

std::vector<int64_t> launch_order(std::optional<double> slack) {
  const auto set = [&](DataParallelOptions& options) { options.launch_slack = slack; };
  // Slower than backward is, on a busy machine too.
  const BucketPlan plan = train_on_ranks(2, {{.strategy = "ordered", .steps = 6, .set = set}}, "2mbit,200us")[0][0].plan;
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
    run_late(strategy, [](Place& place) {
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

// Clips by the norm of all gradients, which it never has together.
struct ClippingSgd final : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    torch::nn::utils::clip_grad_norm_(param_groups()[0].params(), 1e-3);
    return SGD::step(closure);
  }
};

TEST(Ordered, WarnsOfAnOptimizerOfTheProgramsOwn) {
  struct Heard final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  };
  const c10::WarningUtils::WarnAlways always;
  // Ranks may differ afterwards: each clips together what has arrived there at once.
  run_linked_ranks(2, kLateLink, [](const ProcessGroup& group) {
    Place place(group, "ordered", {});
    Heard heard;
    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
    place.train(0, kStepsToLearn + 1);
    EXPECT_EQ(heard.text, "");
    place.training.overlapped.reset();
    place.backward(kStepsToLearn + 1);
    ClippingSgd sgd(place.net.parameters(), torch::optim::SGDOptions(0.1));
    OverlappedOptimizer overlapped(place.training.ddp, sgd);
    overlapped.step();
    overlapped.drain();
    EXPECT_THAT(heard.text, HasSubstr("ClippingSgd must take each parameter by itself"));
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

struct Kind {
  const char* name;
  TrainingSetup setup;
  bool shards = true;
};

class Late : public testing::TestWithParam<std::tuple<Kind, int>> {};

// Over a link so slow that something is on its way at the end of every step; on two ranks, where a sum has one order only.
TEST_P(Late, TrainsAsBucketedToTheLastBit) {
  const auto& [kind, steps] = GetParam();
  TrainingSetup setup = kind.setup;
  setup.dtype = at::kFloat;
  setup.steps = steps;
  std::vector<std::string> strategies = {"bucketed", "ordered"};
  if (kind.shards) strategies.insert(strategies.end(), kSharded.begin(), kSharded.end());
  const std::vector<TrainedRanks> trained = train_on_ranks(2, under(strategies, setup), kLateLink);
  const Trained& bucketed = trained[0][0];
  EXPECT_EQ(bucketed.late, 0);
  for (size_t i = 0; i < strategies.size(); ++i) {
    SCOPED_TRACE(strategies[i]);
    for (const Trained& rank : trained[i]) {
      EXPECT_TRUE(same_bits(rank.parameters, bucketed.parameters));
      if (i == 0) continue;
      EXPECT_GT(rank.late, 0) << "nothing was under way when a step ended: this test has shown nothing";
      EXPECT_GT(rank.stats.awaited_bytes, 0);
      EXPECT_GT(rank.stats.forward_wait_s, 0);
    }
  }
}

const auto kCompresses = [](DataParallelOptions& options) { options.gradient_hook = bf16_compression(); };

const auto kKinds = Values(Kind{"sgd", {}}, Kind{"adamw", {.optimizer = "AdamW"}}, Kind{"adam", {.optimizer = "Adam"}},
                           Kind{"rmsprop", {.optimizer = "RMSprop"}}, Kind{"adagrad", {.optimizer = "Adagrad"}},
                           Kind{"groups", {.optimizer = "Groups"}}, Kind{"accumulates", {.micro_batches = 3}},
                           Kind{"zeroes_in_place", {.zeroes_in_place = true}, false}, Kind{"bf16", {.set = kCompresses}, false},
                           Kind{"adamw_accumulates_bf16", {.optimizer = "AdamW", .micro_batches = 2, .set = kCompresses}, false});
const auto name_of_kind = [](const auto& test) { return std::string(std::get<Kind>(test.param).name); };

INSTANTIATE_TEST_SUITE_P(EightSteps, Late, Combine(kKinds, Values(8)), name_of_kind);
INSTANTIATE_TEST_SUITE_P(Full, Late, Combine(kKinds, Values(50)), name_of_kind);

// Gradients are clipped by the norm of all of them, wherever a rank has which.
TEST(LateClipping, IsByTheGlobalNorm) {
  for (const int world_size : {1, 2, 3}) {
    const auto trained = train_on_ranks(world_size, under({"bucketed", "ordered", "sharded"}, {.steps = 8, .max_norm = 0.05}), kLateLink);
    EXPECT_TRUE(same_bits(trained[1][0].parameters, trained[0][0].parameters));
    EXPECT_LE(relative_difference(trained[2][0].parameters, trained[0][0].parameters), 1e-12);
    EXPECT_EQ(trained[1][0].late, 0);
    for (const TrainedRanks& ranks : trained) expect_equal_ranks(ranks);
  }
}

}  // namespace
}  // namespace firkin
