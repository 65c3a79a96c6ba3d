// What people do with an optimiser besides step(): clipping, schedules, groups, checkpoints and averages of parameters work through an
// OverlappedOptimizer, and give the bits that they give under `bucketed`.

#include "programs.h"

#include "../test.h"

namespace firkin {
namespace {

constexpr int kTrainedSteps = 8;

class OverlappedPrograms : public testing::TestWithParam<int> {
 protected:
  static void expect_ordered_as_bucketed(const LateProgram& program) {
    for (const char* optimizer : {"SGD", "AdamW"}) {
      SCOPED_TRACE(optimizer);
      expect_as_bucketed(std::vector<std::string>{"ordered"}, program, {.ranks = GetParam(), .optimizer = optimizer});
    }
  }
};

void clip_all(Place& place, double max_norm) {
  torch::nn::utils::clip_grad_norm_(place.net.parameters(), max_norm);
}

enum class Clip { kByHand, kByOptimizer };

// `drains`: where gradients may still be on their way, a clip by hand needs them all.
LateProgram clips(Clip how, double max_norm, bool drains = true) {
  return [=](Place& place) {
    for (int step = 0; step < kTrainedSteps; ++step) {
      place.backward(step);
      if (how == Clip::kByOptimizer) place.training.overlapped->clip_gradients(max_norm);
      if (how == Clip::kByHand && drains) place.training.overlapped->drain();
      if (how == Clip::kByHand) clip_all(place, max_norm);
      place.training.step();
    }
  };
}

TEST_P(OverlappedPrograms, ClippingByTheNormOfAllGradientsGivesTheBitsOfClipGradNorm) {
  for (const double max_norm : {0.05, 1e3}) {  // always, and never
    const ProgramSetup setup{.ranks = GetParam(), .optimizer = max_norm < 1 ? "SGD" : "AdamW"};
    const Tensors by_hand = run_late("bucketed", clips(Clip::kByHand, max_norm, /*drains=*/false), setup);
    for (const char* strategy : {"bucketed", "ordered"}) {
      for (const Clip how : {Clip::kByHand, Clip::kByOptimizer}) {
        EXPECT_TRUE(same_bits(run_late(strategy, clips(how, max_norm), setup), by_hand)) << strategy;
      }
    }
  }
}

// The clipped ones and those to come would be stepped as if by two norms.
TEST_P(OverlappedPrograms, AStepAfterAPlainClipOfTheGradientsThatHaveComeIsRefused) {
  run_late("ordered",
           [](Place& place) {
             place.train(0, 3);
             place.backward(3);
             EXPECT_TRUE(place.net.head->weight.grad().defined()) << "this test has shown nothing";
             EXPECT_FALSE(place.net.body->layers[0]->weight.grad().defined()) << "this test has shown nothing";
             clip_all(place, 1e-3);
             EXPECT_THAT(message_of<RuntimeError>([&] { place.training.step(); }), HasSubstr("clip"));
           },
           {.ranks = GetParam()});
}

TEST_P(OverlappedPrograms, ZeroGradSetsToNoneOrToZeroAndLosesNoStep) {
  for (const bool to_none : {true, false}) {
    SCOPED_TRACE(to_none);
    expect_ordered_as_bucketed([to_none](Place& place) {
      for (int step = 0; step < kTrainedSteps; ++step) {
        place.loss(step).backward();
        place.training.step();
        place.training.overlapped->zero_grad(to_none);  // the rest of the step's gradients come after it
        EXPECT_EQ(place.net.head->weight.grad().defined(), !to_none);
      }
    });
  }
}

TEST_P(OverlappedPrograms, SchedulesAndGroupsActOnTheStepsToCome) {
  expect_ordered_as_bucketed([](Place& place) {
    place.training.overlapped.reset();
    torch::optim::SGD optimizer({torch::optim::OptimizerParamGroup(place.net.body->parameters())},
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    OverlappedOptimizer overlapped(place.training.ddp, optimizer);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        place.net.head->parameters(), std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.02).momentum(0.5))));
    torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.7);
    for (int step = 0; step < kTrainedSteps; ++step) {
      overlapped.zero_grad();
      place.loss(step).backward();
      overlapped.step();
      schedule.step();
    }
  });
}

TEST_P(OverlappedPrograms, OptimizerIsDrainedForACheckpoint) {
  expect_ordered_as_bucketed([](Place& place) {
    place.train(0, kTrainedSteps);
    torch::optim::Optimizer& drained = place.training.overlapped->optimizer();
    place.also = copies(place.net.parameters());
    for (const at::Tensor& parameter : place.net.parameters()) {
      const auto& state = *drained.state().at(parameter.unsafeGetTensorImpl());
      if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) place.also.push_back(sgd->momentum_buffer().clone());
      if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
        EXPECT_EQ(adam->step(), kTrainedSteps);
        place.also.push_back(adam->exp_avg().clone());
      }
    }
  });
}

// Branches whose forwards run on threads of their own, each awaiting its parameters.
struct BranchedNet : torch::nn::Module {
  BranchedNet() {
    for (int i = 0; i < 4; ++i)
      branches.push_back(register_module(fmt::format("branch{}", i), Layer(6, 40, at::TensorOptions(at::kDouble))));
    seed_parameters(*this, 4);
  }
  at::Tensor loss(const at::Tensor& x) {
    Tensors results(branches.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < branches.size(); ++i) threads.emplace_back([&, i] { results[i] = branches[i]->forward(x); });
    for (std::thread& thread : threads) thread.join();
    return at::stack(results).pow(2).mean();
  }
  std::vector<Layer> branches;
};

TEST(AwaitingThreads, EachGetItsOwnParametersWhileOthersCompute) {
  Tensors bucketed;
  for (const char* strategy : {"bucketed", "ordered", "sharded"}) {
    const auto run = [&](const ProcessGroup& group) {
      BranchedNet net;
      const DataParallelOptions options = with_strategy(strategy, 3000);  // buckets hold parts of two branches
      Training training(net, group, options, "AdamW");
      for (int step = 0; step < kTrainedSteps; ++step) {
        training.zero_grad();
        net.loss(batch_of(step, group.rank, at::kDouble)).backward();
        training.step();
      }
      const double waited_s = training.ddp.stats().forward_wait_s;
      EXPECT_EQ(waited_s > 0, options.strategy.wait == Wait::kAtFirstUse) << "what the threads awaited was there, or was not awaited";
      return copies(training.ddp.module().parameters());
    };
    const std::vector<Tensors> ranks = results_of(2, run, kLateLink);
    if (bucketed.empty()) bucketed = ranks[0];
    for (const Tensors& rank : ranks)
      EXPECT_LT(relative_difference(rank, bucketed), 1e-14) << strategy;  // products of threads may round anew
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OverlappedPrograms, Values(2, 3));

}  // namespace
}  // namespace firkin
