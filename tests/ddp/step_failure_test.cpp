// Steps that fail or are abandoned: the other ranks hear of it at once, and the next step is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"
#include "seeded.h"
#include "throw_in_backward.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(20);  // a hang is a failure

struct Parameters : torch::nn::Module {
  at::Tensor a = register_parameter("a", at::ones({4}));
  at::Tensor b = register_parameter("b", at::ones({3}));
  at::Tensor loss(double scale) { return ((a.sum() + b.sum()) * scale).sum(); }
  // The gradient of b comes, then backward throws.
  at::Tensor broken_loss() {
    const at::Tensor broken = ThrowInBackward::apply(a.sum(), "broken on purpose");
    return broken + (b * 1.0).sum();
  }
};

// A value that differs between the ranks; its mean over two ranks is 1.5.
double rank_value(const ProcessGroup& group) {
  return group.rank + 1.0;
}
constexpr double kMean = 1.5;

void expect_gradients(const Parameters& net, double value) {
  EXPECT_TRUE(at::equal(net.a.grad(), at::full({4}, value)));
  EXPECT_TRUE(at::equal(net.b.grad(), at::full({3}, value)));
}

// What the step threw as a StepError.
std::optional<StepFailure> failure_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const StepError& error) {
    return error.failure();
  }
  return std::nullopt;
}

constexpr std::array kStrategies = {"naive", "flat", "overlap", "bucketed"};

// Two ranks, every strategy, steps that end with backward and steps that end by hand.
void on_two_ranks(const std::function<void(const ProcessGroup&, const DataParallelOptions&)>& body) {
  for (const char* strategy : kStrategies) {
    for (const bool finish_with_backward : {true, false}) {
      if (testing::Test::HasFailure()) return;
      SCOPED_TRACE(testing::Message() << strategy << ", finish_with_backward " << finish_with_backward);
      DataParallelOptions options;
      options.strategy = find_strategy(strategy);
      options.cap.cap_bytes = 8;
      options.finish_with_backward = finish_with_backward;
      run_ranks(
          2, [&](const ProcessGroup& group) { body(group, options); }, kTimeout);
    }
  }
}

void synchronise(DataParallel& ddp, const at::Tensor& loss) {
  loss.backward();
  ddp.finish_gradient_synchronization();  // does nothing where backward has done it
}

TEST(StepFailure, AHandlerMayAbandonAStepThatHasFailedAlreadyAndTheNextSumsAreRight) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 6; ++step) {
      net.zero_grad(/*set_to_none=*/step % 4 < 2);
      if (step % 2 == 0) {
        EXPECT_ANY_THROW(synchronise(ddp, group.rank == 1 ? net.broken_loss() : net.loss(1))) << "step " << step;
        for (int i = 0; i < 2; ++i) ddp.abandon_step("too late to matter");
        ASSERT_TRUE(ddp.last_failure());
        EXPECT_EQ(*ddp.last_failure(), (StepFailure{1, step, "broken on purpose"}));
        continue;
      }
      synchronise(ddp, net.loss(rank_value(group)));
      EXPECT_FALSE(ddp.last_failure());
      expect_gradients(net, kMean);
    }
  });
}

// Rank 1's forward throws in the given steps, its handler abandons them.
void abandon_on_rank_1(const ProcessGroup& group, DataParallel& ddp, torch::nn::Module& net, const std::function<at::Tensor(int)>& loss) {
  for (int step = 0; step < 5; ++step) {
    net.zero_grad();
    if (step == 0 || step == 3) {
      if (group.rank == 1) {
        ddp.abandon_step("no more memory");
      } else {
        EXPECT_EQ(failure_of([&] { synchronise(ddp, loss(step)); }), (StepFailure{1, step, "no more memory"}));
      }
      EXPECT_EQ(ddp.last_failure(), (StepFailure{1, step, "no more memory"}));
      for (const at::Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
      continue;
    }
    synchronise(ddp, loss(step));
    EXPECT_FALSE(ddp.last_failure());
  }
  EXPECT_EQ(ddp.stats().steps, 3);
}

TEST(StepFailure, AbandoningInTheFirstStepAndLaterIsAnErrorOnTheOtherRanks) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    DataParallel ddp(net, group, options);
    abandon_on_rank_1(group, ddp, net, [&](int) { return net.loss(rank_value(group)); });
    expect_gradients(net, kMean);
  });
}

TEST(StepFailure, AbandoningWithBuffersIsAnErrorOnTheOtherRanksAndBuffersAreEqualAfterTheNextStep) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    DataParallel ddp(*net, group, options);
    abandon_on_rank_1(group, ddp, *net, [&](int step) {
      return net->forward(seeded_randn({5, 3}, static_cast<uint64_t>(10 * step + group.rank)).to(at::kFloat)).pow(3).mean();
    });
    for (const at::Tensor& buffer : net->buffers()) {
      const at::Tensor sums = buffer.to(at::kDouble).sum();
      const auto of_ranks = all_gather(group, {sums.item<double>()});
      EXPECT_EQ(of_ranks[0], of_ranks[1]);
    }
  });
}

TEST(StepFailure, AbandoningUnderFindUnusedParametersIsAnErrorOnTheOtherRanks) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    options.find_unused_parameters = true;
    Parameters net;
    DataParallel ddp(net, group, options);
    abandon_on_rank_1(group, ddp, net, [&](int step) { return step % 2 == 0 ? net.loss(rank_value(group)) : net.b.sum(); });
    expect_gradients(net, kMean);
  });
}

// In every iteration that throws, a handler abandons: forwards that throw in a row, on one rank or on two, behind a backward that threw
// and behind a step that another rank failed. Calling it twice changes nothing.
TEST(StepFailure, BatchesThatThrowInARowAreAbandonedOneByOne) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    DataParallel ddp(net, group, options);
    const std::vector<std::vector<int>> forward_throws_on = {{}, {1}, {1}, {}, {0}, {1}, {0, 1}, {1}, {}, {1}, {}};
    const std::vector<std::vector<int>> backward_throws_on = {{}, {}, {}, {1}, {}, {}, {}, {}, {1}, {}, {}};
    const auto is_in = [&](const std::vector<int>& ranks) { return std::ranges::find(ranks, group.rank) != ranks.end(); };
    for (size_t step = 0; step < forward_throws_on.size(); ++step) {
      const bool fails = !forward_throws_on[step].empty() || !backward_throws_on[step].empty();
      net.zero_grad();
      try {
        if (is_in(forward_throws_on[step])) throw std::runtime_error("a bad batch");
        synchronise(ddp, is_in(backward_throws_on[step]) ? net.broken_loss() : net.loss(rank_value(group)));
        EXPECT_FALSE(fails) << step;
        expect_gradients(net, kMean);
      } catch (const std::exception& error) {
        EXPECT_TRUE(fails) << step;
        for (int i = 0; i < 2; ++i) ddp.abandon_step(error.what());
        ASSERT_TRUE(ddp.last_failure());
        EXPECT_EQ(ddp.last_failure()->step, static_cast<int64_t>(step));
      }
    }
    EXPECT_EQ(ddp.stats().steps, 2);
  });
}

// Not after the timeout of minutes.
TEST(StepFailure, ACollectiveThatOneRankCallsAloneIsAnErrorThatNamesBothWaits) {
  using Call = std::function<void(DataParallel&)>;
  const Call audits = [](DataParallel& ddp) { ddp.audit(); };
  const Call changes = [](DataParallel& ddp) { ddp.parameters_changed(); };
  for (const auto& [name, call] : {std::pair("audit()", audits), std::pair("parameters_changed()", changes)}) {
    run_ranks(2, [&](const ProcessGroup& group) {
      Parameters net;
      DataParallel ddp(net, group, {});
      for (int i = 0; i < 2; ++i) {  // in the same places both work
        synchronise(ddp, net.loss(rank_value(group)));
        call(ddp);
      }
      const auto started = std::chrono::steady_clock::now();
      std::string heard;
      try {
        if (group.rank == 0) call(ddp);
        synchronise(ddp, net.loss(rank_value(group)));
      } catch (const GroupError& error) {
        heard = error.what();
      }
      EXPECT_THAT(heard, testing::HasSubstr(fmt::format("rank 0 waits in step 2 of {} on module 0, rank 1 in step 2 of module 0", name)));
      EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));
    });
  }
}

TEST(StepFailure, ABackwardThatThrowsUnderNoSyncIsToldByAbandoning) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 4; ++step) {
      net.zero_grad();
      const bool fails = step % 2 == 0;
      try {
        {
          const auto scope = ddp.no_sync();
          (fails && group.rank == 0 ? net.broken_loss() : net.loss(1)).backward();
        }
        synchronise(ddp, net.loss(rank_value(group)));
        EXPECT_FALSE(fails);
        expect_gradients(net, kMean + 1);
      } catch (const std::exception& error) {
        EXPECT_TRUE(fails);
        ddp.abandon_step(error.what());
        EXPECT_EQ(ddp.last_failure(), (StepFailure{0, step, "broken on purpose"}));
      }
    }
  });
}

// As above, but right after a step that failed: the gradients that came under no_sync() are what tells the two failures apart.
TEST(StepFailure, AStepCanBeAbandonedAfterItsFirstMicroBatchThoughTheStepBeforeFailedToo) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      try {
        {
          const auto scope = ddp.no_sync();
          net.loss(1).backward();
        }
        if (step < 2 && group.rank == 0) throw OnPurpose("forward failed");
        synchronise(ddp, net.loss(rank_value(group)));
        EXPECT_EQ(step, 2);
        expect_gradients(net, kMean + 1);
      } catch (const std::exception& error) {
        ddp.abandon_step(error.what());
        EXPECT_EQ(ddp.last_failure(), (StepFailure{0, step, "forward failed"}));
      }
    }
  });
}

TEST(StepFailure, AParameterWithoutGradientOnOneRankIsTheSameErrorOnAllRanksAndNamesIt) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    DataParallel ddp(net, group, options);
    for (int step = 0; step < 4; ++step) {
      net.zero_grad();
      if (step % 2 == 0) {
        const auto failure = failure_of([&] { synchronise(ddp, group.rank == 1 ? net.b.sum() : net.loss(1)); });
        ASSERT_TRUE(failure);
        EXPECT_EQ(failure->rank, 1);
        EXPECT_EQ(failure->step, step);
        EXPECT_THAT(failure->reason, AllOf(HasSubstr("no gradient for a;"), HasSubstr("find_unused_parameters")));
        EXPECT_EQ(ddp.last_failure(), failure);
        continue;
      }
      synchronise(ddp, net.loss(rank_value(group)));
      expect_gradients(net, kMean);
    }
  });
}

TEST(StepFailure, InAJoinSectionRanksStayTogetherWhenTheLastBackwardOfOneFails) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.5));
    DataParallel ddp(net, group, options);
    auto join = ddp.join();
    const int batches = group.rank == 0 ? 2 : 4;
    int failures = 0;
    for (int step = 0; step < batches; ++step) {
      optimizer.zero_grad();
      try {
        const bool breaks = step == batches - 1;  // step 1 of rank 0, step 3 of rank 1, when rank 0 is in finish()
        synchronise(ddp, breaks ? net.broken_loss() : net.loss(1));
        optimizer.step();
      } catch (const std::exception&) {
        ++failures;
      }
    }
    for (bool ended = false; !ended;) {
      ended = !failure_of([&] { join.finish([&] { optimizer.step(); }); });
      if (!ended) ++failures;
    }
    EXPECT_EQ(failures, 2);
    EXPECT_EQ(ddp.stats().steps, 2);
    EXPECT_TRUE(at::equal(net.a, at::zeros({4})));  // two steps of gradient 1
    EXPECT_TRUE(at::equal(net.b, at::zeros({3})));
    net.zero_grad();
    synchronise(ddp, net.loss(rank_value(group)));
    expect_gradients(net, kMean);
  });
}

TEST(StepEnd, AccumulatingWithTheSetterGivesTheGradientOfOneLargeBatch) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    constexpr int kMicros = 3;
    torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
    net->to(at::kDouble);
    seed_parameters(*net, 5);
    const at::Tensor large_batch = seeded_randn({2 * kMicros * 2, 4}, 6);
    net->forward(large_batch).pow(2).mean().backward();
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : net->parameters()) expected.push_back(parameter.grad().clone());
    net->zero_grad();

    DataParallel ddp(*net, group, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      for (int micro = 0; micro < kMicros; ++micro) {
        ddp.set_gradient_synchronization(micro == kMicros - 1);
        const at::Tensor x = large_batch.narrow(0, 2 * (kMicros * group.rank + micro), 2);
        (net->forward(x).pow(2).mean() / kMicros).backward();
      }
      ddp.finish_gradient_synchronization();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i], 1e-9, 1e-12)) << "parameter " << i;
      }
    }
    EXPECT_EQ(ddp.stats().steps, 3);
  });
}

class FinishesWithBackward : public testing::TestWithParam<const char*> {};

TEST_P(FinishesWithBackward, TheMeanIsThereWhenBackwardReturns) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        Parameters net;
        DataParallelOptions options;
        options.strategy = find_strategy(GetParam());
        DataParallel ddp(net, group, options);
        for (int step = 0; step < 4; ++step) {
          net.zero_grad(/*set_to_none=*/step % 2 == 0);
          net.loss(rank_value(group)).backward();
          expect_gradients(net, kMean);
          EXPECT_EQ(ddp.stats().steps, step + 1);
        }
      },
      kTimeout);
}

INSTANTIATE_TEST_SUITE_P(Strategies, FinishesWithBackward, testing::Values("naive", "flat", "overlap", "bucketed"));

}  // namespace
}  // namespace firkin
