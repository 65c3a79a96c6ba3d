// What people do with an optimiser besides step(): clipping, schedules, groups, checkpoints and averages of parameters work through an
// OverlappedOptimizer, and give the bits that they give under `bucketed`.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "layered_net.h"
#include "sharded_training.h"
#include "tensors.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::HasSubstr;

constexpr const char* kSlowLink = "8mbit,200us";  // gradients are on their way when the next forward begins
constexpr int kSteps = 12;
const at::TensorOptions kDoubles = at::TensorOptions().dtype(at::kDouble);

// A body that awaits its parameters, under a head that does not: its gradients are there after backward.
struct HeadedNet : torch::nn::Module {
  HeadedNet() {
    head->to(at::kDouble);
    seed_parameters(*head, 9);
  }
  at::Tensor loss(int step, int rank) { return head->forward(body->forward(batch_of(step, rank, kDoubles))).pow(2).mean(); }
  LayeredNet body = register_module("body", LayeredNet(kDoubles));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
};

DataParallelOptions options_for(const std::string& strategy) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap.cap_bytes = 64;
  return options;
}

// What a program on two or three ranks has at hand.
struct Place {
  HeadedNet& net;
  DataParallel& ddp;
  torch::optim::Optimizer& optimizer;
  int rank;
  bool is_ordered;
};

using Program = std::function<Tensors(Place&)>;  // returns copies

class OverlappedPrograms : public testing::TestWithParam<int> {
 protected:
  // Runs `program` under both strategies and two optimisers: every rank gets the same bits of both.
  void expect_the_bits_of_bucketed(const Program& program) {
    for (const bool adam : {false, true}) {
      SCOPED_TRACE(adam ? "AdamW" : "SGD");
      const std::vector<Tensors> bucketed = run("bucketed", adam, program);
      const std::vector<Tensors> ordered = run("ordered", adam, program);
      ASSERT_FALSE(bucketed[0].empty());
      for (const Tensors& rank : bucketed) EXPECT_TRUE(same_bits(rank, bucketed[0]));
      for (const Tensors& rank : ordered) EXPECT_TRUE(same_bits(rank, bucketed[0]));
    }
  }

  static std::vector<Tensors> run(const std::string& strategy, bool adam, const Program& program) {
    std::vector<Tensors> results(static_cast<size_t>(GetParam()));
    run_linked_ranks(GetParam(), kSlowLink, [&](const ProcessGroup& group) {
      HeadedNet net;
      DataParallel ddp(net, group, options_for(strategy));
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (adam) {
        optimizer = std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(0.01));
      } else {
        optimizer = std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      }
      Place place{net, ddp, *optimizer, group.rank, strategy == "ordered"};
      results[static_cast<size_t>(group.rank)] = program(place);
    });
    return results;
  }
};

std::vector<at::Tensor> optimised(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

TEST_P(OverlappedPrograms, ClipNormGivesTheBitsOfClipGradNormAndAStep) {
  for (const double max_norm : {0.05, 1e3}) {  // always, and never
    SCOPED_TRACE(max_norm);
    expect_the_bits_of_bucketed([max_norm](Place& place) {
      OverlappedOptimizer overlapped(place.ddp, place.optimizer, OverlappedOptions{.clip_norm = max_norm});
      for (int step = 0; step < kSteps; ++step) {
        place.net.loss(step, place.rank).backward();
        if (place.is_ordered) {
          overlapped.step();
        } else {
          torch::nn::utils::clip_grad_norm_(optimised(place.optimizer), max_norm);
          place.optimizer.step();
        }
        place.optimizer.zero_grad();
      }
      return copies(place.ddp.module().parameters());
    });
  }
}

TEST_P(OverlappedPrograms, ClipNormClipsUnderOtherStrategiesToo) {
  const auto train = [](bool by_hand) {
    return [by_hand](Place& place) {
      OverlappedOptions options;
      if (!by_hand) options.clip_norm = 0.05;
      OverlappedOptimizer overlapped(place.ddp, place.optimizer, options);
      for (int step = 0; step < kSteps; ++step) {
        overlapped.zero_grad();
        place.net.loss(step, place.rank).backward();
        if (by_hand) torch::nn::utils::clip_grad_norm_(optimised(place.optimizer), 0.05);
        overlapped.step();
      }
      return copies(place.ddp.module().parameters());
    };
  };
  EXPECT_TRUE(same_bits(run("bucketed", false, train(true))[0], run("bucketed", false, train(false))[0]));
}

TEST_P(OverlappedPrograms, ClippingEachGradientIsBucketedToTheLastBit) {
  const auto train = [](Place& place) {
    OverlappedOptimizer overlapped(place.ddp, place.optimizer, {.clip_norm = 0, .clip_each_norm = 0.05});
    for (int step = 0; step < kSteps; ++step) {
      place.optimizer.zero_grad();
      place.net.loss(step, place.rank).backward();
      overlapped.step();
    }
    return copies(place.ddp.module().parameters());
  };
  const Tensors clipped = run("ordered", false, train)[0];
  EXPECT_TRUE(same_bits(clipped, run("bucketed", false, train)[0]));
  const auto by_hand = [](Place& place) {
    for (int step = 0; step < kSteps; ++step) {
      place.optimizer.zero_grad();
      place.net.loss(step, place.rank).backward();
      for (const at::Tensor& parameter : optimised(place.optimizer)) torch::nn::utils::clip_grad_norm_({parameter}, 0.05);
      place.optimizer.step();
    }
    return copies(place.ddp.module().parameters());
  };
  const Tensors expected = run("bucketed", false, by_hand)[0];
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(clipped[i], expected[i], 1e-9, 1e-12)) << "parameter " << i;
}

// The clipped ones and those to come would be stepped as if by two norms.
TEST_P(OverlappedPrograms, AStepAfterAPlainClipOfTheGradientsThatHaveComeIsRefused) {
  run("ordered", false, [](Place& place) {
    OverlappedOptimizer overlapped(place.ddp, place.optimizer);
    for (int step = 0; step < 4; ++step) {
      place.optimizer.zero_grad();
      place.net.loss(step, place.rank).backward();
      if (step == 3) {
        EXPECT_TRUE(place.net.head->weight.grad().defined()) << "this test has shown nothing";
        EXPECT_FALSE(place.net.body->layers[0]->weight.grad().defined()) << "this test has shown nothing";
        torch::nn::utils::clip_grad_norm_(optimised(place.optimizer), 1e-3);
        std::string error;
        try {
          overlapped.step();
        } catch (const RuntimeError& refused) {
          error = refused.what();
        }
        EXPECT_THAT(error, HasSubstr("clip"));
        continue;
      }
      overlapped.step();
    }
    return Tensors{};
  });
}

TEST_P(OverlappedPrograms, APlainClipAfterADrainIsAsUnderBucketed) {
  expect_the_bits_of_bucketed([](Place& place) {
    OverlappedOptimizer overlapped(place.ddp, place.optimizer);
    for (int step = 0; step < kSteps; ++step) {
      overlapped.zero_grad();
      place.net.loss(step, place.rank).backward();
      overlapped.drain();
      torch::nn::utils::clip_grad_norm_(optimised(place.optimizer), 0.05);
      overlapped.step();
    }
    return copies(place.ddp.module().parameters());
  });
}

TEST_P(OverlappedPrograms, ZeroGradSetsToNoneOrToZeroAndLosesNoStep) {
  for (const bool to_none : {true, false}) {
    SCOPED_TRACE(to_none);
    expect_the_bits_of_bucketed([to_none](Place& place) {
      OverlappedOptimizer overlapped(place.ddp, place.optimizer);
      for (int step = 0; step < kSteps; ++step) {
        place.net.loss(step, place.rank).backward();
        overlapped.step();
        overlapped.zero_grad(to_none);  // the rest of the step's gradients come after it
        EXPECT_EQ(place.net.head->weight.grad().defined(), !to_none);
      }
      return copies(place.ddp.module().parameters());
    });
  }
}

TEST_P(OverlappedPrograms, SchedulesAndGroupsActOnTheStepsToCome) {
  expect_the_bits_of_bucketed([](Place& place) {
    torch::optim::SGD optimizer({torch::optim::OptimizerParamGroup(place.net.body->parameters())},
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    OverlappedOptimizer overlapped(place.ddp, optimizer);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        place.net.head->parameters(), std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.02).momentum(0.5))));
    torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.7);
    for (int step = 0; step < kSteps; ++step) {
      overlapped.zero_grad();
      place.net.loss(step, place.rank).backward();
      overlapped.step();
      schedule.step();
    }
    return copies(place.ddp.module().parameters());
  });
}

TEST_P(OverlappedPrograms, OptimizerIsDrainedForACheckpoint) {
  expect_the_bits_of_bucketed([](Place& place) {
    OverlappedOptimizer overlapped(place.ddp, place.optimizer);
    for (int step = 0; step < kSteps; ++step) {
      overlapped.zero_grad();
      place.net.loss(step, place.rank).backward();
      overlapped.step();
    }
    torch::optim::Optimizer& drained = overlapped.optimizer();
    Tensors all = copies(place.net.parameters());
    for (const at::Tensor& parameter : place.net.parameters()) {
      const auto& state = *drained.state().at(parameter.unsafeGetTensorImpl());
      if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) all.push_back(sgd->momentum_buffer().clone());
      if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
        EXPECT_EQ(adam->step(), kSteps);
        all.push_back(adam->exp_avg().clone());
      }
    }
    return all;
  });
}

TEST_P(OverlappedPrograms, AnAverageOfParametersThatIsReadAfterADrainIsTheSameOnEveryRank) {
  expect_the_bits_of_bucketed([](Place& place) {
    OverlappedOptimizer overlapped(place.ddp, place.optimizer);
    Tensors average = copies(place.net.parameters());
    for (int step = 0; step < kSteps; ++step) {
      overlapped.zero_grad();
      place.net.loss(step, place.rank).backward();
      overlapped.step();
      const at::NoGradGuard no_grad;
      const std::vector<at::Tensor> parameters = place.ddp.module().parameters();
      for (size_t i = 0; i < average.size(); ++i) average[i].mul_(0.9).add_(parameters[i], 0.1);
    }
    return average;
  });
}

// Branches whose forwards run on threads of their own, each awaiting its parameters.
struct BranchedNet : torch::nn::Module {
  BranchedNet() {
    for (int i = 0; i < 4; ++i) branches.push_back(register_module(fmt::format("branch{}", i), Layer(6, 40, kDoubles)));
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
  const auto train = [](const char* strategy) {
    std::vector<Tensors> ranks(2);
    run_linked_ranks(2, kSlowLink, [&](const ProcessGroup& group) {
      BranchedNet net;
      DataParallelOptions options = options_for(strategy);
      options.cap.cap_bytes = 3000;  // buckets hold parts of two branches
      ShardedTraining training(net, group, options, "AdamW");
      std::optional<OverlappedOptimizer> overlapped;
      if (training.plain) overlapped.emplace(training.ddp, *training.plain);
      for (int step = 0; step < kSteps; ++step) {
        if (training.plain) training.plain->zero_grad();  // those that have come, and whose parameters are stepped
        net.loss(batch_of(step, group.rank, kDoubles)).backward();
        overlapped ? overlapped->step() : training.step();
      }
      const double waited_s = training.ddp.stats().forward_wait_s;
      EXPECT_EQ(waited_s > 0, options.strategy.wait == Wait::kAtFirstUse) << "what the threads awaited was there, or was not awaited";
      ranks[static_cast<size_t>(group.rank)] = copies(training.ddp.module().parameters());
    });
    EXPECT_TRUE(same_bits(ranks[0], ranks[1])) << strategy;
    return ranks[0];
  };
  const Tensors bucketed = train("bucketed");
  EXPECT_TRUE(same_bits(train("ordered"), bucketed));
  EXPECT_TRUE(same_bits(train("sharded"), bucketed));
}

INSTANTIATE_TEST_SUITE_P(Ranks, OverlappedPrograms, testing::Values(2, 3));

}  // namespace
}  // namespace firkin
