// Programs that are a little wrong, or meet an error: ranks end with equal parameters, or every rank is told. Nothing differs silently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <tuple>

#include "../comm/thread_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "seeded.h"
#include "throw_in_backward.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(20);  // a hang is a failure

struct Mlp : torch::nn::Module {
  explicit Mlp(uint64_t seed) { seed_parameters(*this, seed); }
  // text: what backward throws, once the gradients of the last layer have come; empty: nothing.
  at::Tensor loss(const at::Tensor& x, const std::string& text = "") {
    at::Tensor h = torch::tanh(first->forward(x));
    if (!text.empty()) h = ThrowInBackward::apply(h, text);
    return last->forward(torch::tanh(middle->forward(h))).pow(2).mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(7, 7));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(7, 2));
};

at::Tensor batch_of(const ProcessGroup& group, int repeat, int step, int micro = 0) {
  const int which = ((repeat * 10 + step) * 4 + group.rank) * 4 + micro;
  return seeded_randn({4, 5}, static_cast<uint64_t>(which)).to(at::kFloat);
}

DataParallelOptions small_buckets(bool finish_with_backward = true) {
  DataParallelOptions options;
  options.cap.cap_bytes = 64;
  options.finish_with_backward = finish_with_backward;
  return options;
}

// What each rank ended with; compared when all ranks have.
class Ends {
 public:
  explicit Ends(int ranks) : ends_(static_cast<size_t>(ranks)) {}

  void add(int rank, const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) ends_[static_cast<size_t>(rank)].push_back(parameter.detach().clone());
  }
  void expect_equal() const {
    ASSERT_FALSE(ends_[0].empty());
    for (size_t rank = 1; rank < ends_.size(); ++rank) {
      ASSERT_EQ(ends_[rank].size(), ends_[0].size()) << "rank " << rank;
      for (size_t i = 0; i < ends_[0].size(); ++i) {
        EXPECT_TRUE(at::equal(ends_[rank][i], ends_[0][i])) << "parameter " << i << " of rank " << rank;
      }
    }
  }

 private:
  std::vector<std::vector<at::Tensor>> ends_;
};

struct Runs {
  int ranks;
  int repeats;  // six: each rank fails in each of the steps 0 to 2
};

class NeverSilent : public testing::TestWithParam<Runs> {
 protected:
  // Runs `program` on all ranks, repeatedly; it leaves the module in its final state.
  template <typename Program>
  void expect_equal_parameters_after(const Program& program) {
    const auto [ranks, repeats] = GetParam();
    for (int repeat = 0; repeat < repeats && !HasFailure(); ++repeat) {
      SCOPED_TRACE(repeat);
      Ends ends(ranks);
      run_ranks(
          ranks,
          [&](const ProcessGroup& group) {
            Mlp net(static_cast<uint64_t>(100 * repeat + group.rank));  // rank 0's is broadcast
            torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
            program(group, net, optimizer, repeat);
            ends.add(group.rank, net);
          },
          kTimeout);
      ends.expect_equal();
    }
  }
};

TEST_P(NeverSilent, WithoutFinishGradientSynchronizationRanksStayEqual) {
  expect_equal_parameters_after([](const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat) {
    DataParallel ddp(net, group, small_buckets());
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      net.loss(batch_of(group, repeat, step)).backward();
      optimizer.step();
    }
    EXPECT_EQ(ddp.stats().steps, 6);
    EXPECT_FALSE(ddp.last_failure());
  });
}

// One step as users write it: an exception means that the optimiser is not stepped, and that is all. Returns what was caught.
std::string try_step(DataParallel& ddp, Mlp& net, torch::optim::SGD& optimizer, const at::Tensor& batch, const std::string& text,
                     bool finishes) {
  try {
    optimizer.zero_grad();
    net.loss(batch, text).backward();
    if (finishes) ddp.finish_gradient_synchronization();
    optimizer.step();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void run_with_one_broken_backward(const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat,
                                  bool finish_with_backward) {
  constexpr int kSteps = 6;
  const int broken_step = repeat % 3;  // 0 takes a path of its own
  const int broken_rank = repeat % group.size;
  const std::string text = "broken on purpose";
  DataParallel ddp(net, group, small_buckets(finish_with_backward));
  for (int step = 0; step < kSteps; ++step) {
    const bool breaks = step == broken_step && group.rank == broken_rank;
    const std::string caught = try_step(ddp, net, optimizer, batch_of(group, repeat, step), breaks ? text : "", !finish_with_backward);
    if (step != broken_step) {
      EXPECT_EQ(caught, "") << "step " << step;
      EXPECT_FALSE(ddp.last_failure()) << "step " << step;
      continue;
    }
    EXPECT_THAT(caught, HasSubstr(text));
    if (!breaks) {
      EXPECT_THAT(caught, HasSubstr("rank " + std::to_string(broken_rank)));
    }
    ASSERT_TRUE(ddp.last_failure());
    EXPECT_EQ(ddp.last_failure()->rank, broken_rank);
    EXPECT_EQ(ddp.last_failure()->step, broken_step);
    EXPECT_THAT(ddp.last_failure()->reason, HasSubstr(text));
    for (const at::Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(ddp.stats().steps, kSteps - 1);
}

TEST_P(NeverSilent, WhenBackwardThrowsOnOneRankEveryRankHearsOfItInThatStepAndTrainingGoesOn) {
  expect_equal_parameters_after([](const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat) {
    run_with_one_broken_backward(group, net, optimizer, repeat, /*finish_with_backward=*/true);
  });
}

TEST_P(NeverSilent, WhenBackwardThrowsOnOneRankTheOthersHearOfItFromFinishGradientSynchronization) {
  expect_equal_parameters_after([](const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat) {
    run_with_one_broken_backward(group, net, optimizer, repeat, /*finish_with_backward=*/false);
  });
}

TEST_P(NeverSilent, ABackwardUnderNoSyncAfterASynchronisedOneAccumulatesForTheNextSynchronisedOne) {
  expect_equal_parameters_after([](const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat) {
    DataParallel ddp(net, group, small_buckets());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      net.loss(batch_of(group, repeat, step, 0)).backward();
      const at::Tensor mean = net.first->weight.grad().clone();
      {
        const auto scope = ddp.no_sync();
        net.loss(batch_of(group, repeat, step, 1)).backward();
      }
      EXPECT_FALSE(at::equal(net.first->weight.grad(), mean));
      net.loss(batch_of(group, repeat, step, 2)).backward();
      optimizer.step();
    }
    EXPECT_EQ(ddp.stats().steps, 8);
  });
}

// The ranks below `offenders` run a backward under no_sync() between backward and finish_gradient_synchronization(), and go on.
void run_with_backward_before_finish(const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat, int offenders) {
  constexpr int kOffence = 1;
  DataParallel ddp(net, group, small_buckets(/*finish_with_backward=*/false));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    net.loss(batch_of(group, repeat, step, 0)).backward();
    if (step == kOffence && group.rank < offenders) {
      const auto scope = ddp.no_sync();
      EXPECT_THROW(net.loss(batch_of(group, repeat, step, 1)).backward(), std::exception);
    }
    if (step != kOffence) {
      ddp.finish_gradient_synchronization();
      optimizer.step();
      continue;
    }
    try {
      ddp.finish_gradient_synchronization();
      optimizer.step();
      EXPECT_FALSE(ddp.last_failure());
    } catch (const StepError& error) {
      EXPECT_EQ(ddp.last_failure(), error.failure());
      EXPECT_EQ(error.failure().step, kOffence);
      EXPECT_LT(error.failure().rank, offenders);
    }
    const auto ranks_that_failed = all_gather(group, {ddp.last_failure() ? 1.0 : 0.0});
    for (const auto& failed : ranks_that_failed) EXPECT_EQ(failed, ranks_that_failed[0]);
  }
}

TEST_P(NeverSilent, ABackwardUnderNoSyncBeforeTheFinishIsRefusedOnEveryRankThatTries) {
  expect_equal_parameters_after([](const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat) {
    run_with_backward_before_finish(group, net, optimizer, repeat, group.size);
  });
}

TEST_P(NeverSilent, ABackwardUnderNoSyncBeforeTheFinishOnOneRankMakesNoRankDiffer) {
  expect_equal_parameters_after([](const ProcessGroup& group, Mlp& net, torch::optim::SGD& optimizer, int repeat) {
    run_with_backward_before_finish(group, net, optimizer, repeat, 1);
  });
}

const auto name_of_ranks = [](const auto& runs) { return std::to_string(runs.param.ranks); };
INSTANTIATE_TEST_SUITE_P(Ranks, NeverSilent, testing::Values(Runs{2, 6}, Runs{3, 6}), name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Full, NeverSilent, testing::Values(Runs{2, 20}, Runs{3, 20}), name_of_ranks);

}  // namespace
}  // namespace firkin
