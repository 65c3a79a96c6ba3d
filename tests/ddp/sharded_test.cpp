// The strategy sharded: a part of the optimiser on every rank, and what travels (late_test.cpp, strategies_test.cpp: that it trains as
// bucketed).

#include <map>

#include "../test.h"
#include "ddp/sharded/slices.h"
#include "training.h"

namespace firkin {
namespace {

TEST(Sharded, ARankKeepsItsPartOfTheOptimizersState) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    const TrainingSetup setup{.optimizer = optimizer, .steps = 2};
    const Trained alone = train_on_ranks(1, {setup})[0][0];
    const int64_t plain = alone.state_elements, largest = std::ranges::max(alone.parameters, {}, &at::Tensor::numel).numel();
    for (const int world_size : {2, 4}) {
      const std::vector<TrainedRanks> trained = train_on_ranks(world_size, under({kSharded.begin(), kSharded.end()}, setup));
      for (size_t i = 0; i < trained.size(); ++i) {
        int64_t sum = 0;
        for (const Trained& rank : trained[i]) {
          const int64_t uneven = kSharded[i] == kWhole ? largest : 1500 / 8;  // a bucket's
          EXPECT_LE(rank.state_elements, plain / world_size + uneven) << kSharded[i];
          sum += rank.state_elements;
        }
        EXPECT_EQ(sum, plain);
      }
    }
  }
}

// It sends nothing, its parameters are all its own, and both halves of a step take the link's time.
TEST(Sharded, OneRankThatStandsForManyTrainsAsAloneAndWaitsForTheLink) {
  const ModelledLink link = parse_link(kLateLink, 4);
  for (const std::string& strategy : kSharded) {
    SCOPED_TRACE(strategy);
    const TrainingSetup setup{.strategy = strategy, .steps = 4};
    const Trained alone = train_on_ranks(1, {setup})[0][0];
    Trained of_many;
    run_ranks_with(1, {.timeout = std::chrono::seconds(60), .link = link},
                   [&](const ProcessGroup& group) { of_many = train(group, setup); });
    EXPECT_TRUE(same_bits(of_many.parameters, alone.parameters));
    ASSERT_FALSE(of_many.stats.buckets.empty());
    for (const BucketStats& bucket : of_many.stats.buckets) {
      EXPECT_GE(bucket.end_s - bucket.launch_s, share_time(link, bucket.bytes_on_wire).alone_s);
    }
    EXPECT_EQ(alone.stats.forward_wait_s, 0);
    EXPECT_GT(of_many.stats.forward_wait_s, 0) << "no module waited for the parameters that its bucket gathers";
  }
}

// The bucket's sum over three ranks is `sum`, of which each rank first has its slice, and then everything.
void expect_sum_in_slices(const ProcessGroup& group, SlicedBucket slices, const at::Tensor& sum) {
  const at::Tensor bucket = sum * std::vector<double>{0.5, 0.25, 0.25}[static_cast<size_t>(group.rank)];
  wait(group, slices.start(group, bucket), "slices");
  slices.finish(group, bucket);
  const at::Tensor own = slices.own(group, bucket).clone();
  EXPECT_TRUE(at::equal(own, slices.own(group, sum)));
  bucket.fill_(-1);
  slices.own(group, bucket).copy_(own);
  slices.gather(group, bucket);
  slices.wait_for_gather(group, [] { return std::string("slices"); });
  EXPECT_TRUE(at::equal(bucket, sum));
}

TEST(Slices, OfAnyLengthsTravelAndAddUp) {
  run_ranks(3, [](const ProcessGroup& group) {
    for (const SliceLengths& lengths : {SliceLengths{4, 2, 4}, SliceLengths{6, 0, 4}, SliceLengths{0, 10, 0}}) {
      expect_sum_in_slices(group, SlicedBucket(lengths), at::arange(10, at::kDouble));
    }
    expect_sum_in_slices(group, SlicedBucket(), at::arange(3 * 1'000'003, at::kInt).to(at::kFloat));  // in two pieces of unequal length
  });
}

constexpr int64_t kRows = 8;

torch::nn::Sequential rounded_net() {
  torch::nn::Sequential net(torch::nn::Linear(6, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  net->to(at::kBFloat16);
  const at::NoGradGuard no_grad;
  double first = 0.3;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(at::sin(at::arange(parameter.numel(), at::kFloat) + first).view(parameter.sizes()));
    first += 0.5;
  }
  return net;
}

// What each rank's rows give is the same whatever the strategy.
class MasterTraining {
 public:
  explicit MasterTraining(const ProcessGroup& group, const std::string& optimizer = "AdamW")
      : net(rounded_net()), group_(group), training_(*net, group, with_strategy("sharded", 40), optimizer, {.master_weights = true}) {}

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      const at::Tensor rows = at::arange(kRows * 6, at::kFloat).view({kRows, 6}) * (0.1 + 0.01 * done_++) + group_.rank;
      net->forward(rows.sin().to(at::kBFloat16)).square().sum().backward();
      sharded.step();
    }
  }

  std::map<std::string, at::Tensor> masters() {
    std::map<std::string, at::Tensor> result;
    for (const auto& [name, master] : sharded.gather_masters()) result[name] = master;
    return result;
  }

  torch::nn::Sequential net;

 private:
  const ProcessGroup& group_;
  int done_ = 0;
  Training training_;

 public:
  DataParallel& ddp = training_.ddp;
  ShardedOptimizer& sharded = *training_.sharded;
};

void expect_rounded(const torch::nn::Module& net, const std::map<std::string, at::Tensor>& masters) {
  for (const auto& [name, parameter] : trainable_parameters(net)) {
    const at::Tensor& master = masters.at(name);
    EXPECT_EQ(master.scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(at::equal(master.to(at::kBFloat16), parameter.detach())) << name;
    EXPECT_FALSE(at::equal(master, parameter.detach().to(at::kFloat))) << name << ": more than its parameter";
  }
}

TEST(ShardedMasters, EveryParameterIsItsMasterRoundedOnEveryRank) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](const ProcessGroup& group) {
      MasterTraining training(group);
      training.steps(5);
      expect_rounded(training.ddp.module(), training.masters());
    });
  }
}

TEST(ShardedMasters, ValuesThatTheProgramWritesAreSteppedFrom) {
  run_ranks(2, [](const ProcessGroup& group) {
    MasterTraining training(group, "Plain");
    training.steps(2);
    training.ddp.module();  // waits
    const std::map<std::string, at::Tensor> before = training.masters();
    {
      const at::NoGradGuard no_grad;
      training.net->parameters()[0].select(0, 0).fill_(0.75);
    }
    for (auto& options : training.sharded.optimizer().param_groups()) options.options().set_lr(0);
    training.steps(1);
    std::map<std::string, at::Tensor> after = training.masters();
    EXPECT_TRUE(after.at("0.weight").select(0, 0).eq(0.75).all().item<bool>());
    EXPECT_TRUE(at::equal(after.at("0.weight").narrow(0, 1, 6), before.at("0.weight").narrow(0, 1, 6))) << "these nobody has written";
    EXPECT_TRUE(at::equal(after.at("2.weight"), before.at("2.weight")));
  });
}

TEST(ShardedMasters, StayExactWhenPartsAreDividedAnew) {
  run_ranks(3, [](const ProcessGroup& group) {
    MasterTraining training(group);
    training.steps(3);
    training.ddp.module();
    const auto before = training.masters();
    training.net->parameters()[0].set_requires_grad(false);
    training.ddp.parameters_changed();
    training.steps(0);
    for (const auto& [name, master] : training.masters()) EXPECT_TRUE(at::equal(master, before.at(name))) << name;
    training.steps(2);
    training.net->parameters()[0].set_requires_grad(true);
    training.ddp.parameters_changed();
    EXPECT_TRUE(at::equal(training.masters().at("0.weight"), before.at("0.weight"))) << "frozen meanwhile";
    training.steps(2);
    expect_rounded(training.ddp.module(), training.masters());
  });
}

TEST(ShardedMasters, LoadedOnesGoOnToTheLastBit) {
  run_ranks(2, [](const ProcessGroup& group) {
    MasterTraining whole(group);
    whole.steps(6);
    const auto expected = whole.masters();

    MasterTraining first(group);
    first.steps(3);
    const auto plain = make_named_optimizer("AdamW", trainable_parameters(first.ddp.module()));
    first.sharded.gather_into(*plain);
    const std::vector<NamedTensor> masters = first.sharded.gather_masters();

    MasterTraining second(group);
    second.steps(3);  // of the data; what it has learned is replaced
    const at::NoGradGuard no_grad;
    const std::vector<NamedTensor> from = trainable_parameters(*first.net), to = trainable_parameters(second.ddp.module());
    const auto of_second = make_named_optimizer("AdamW", to);
    for (size_t i = 0; i < to.size(); ++i) {
      to[i].tensor.detach().copy_(from[i].tensor);
      of_second->state()[to[i].tensor.unsafeGetTensorImpl()] = plain->state().at(from[i].tensor.unsafeGetTensorImpl())->clone();
    }
    second.sharded.load_from(*of_second);
    second.sharded.load_masters(masters);
    {
      const at::AutoGradMode grad(true);
      second.steps(3);
    }
    for (const auto& [name, master] : second.masters()) EXPECT_TRUE(at::equal(master, expected.at(name))) << name;
  });
}

TEST(ShardedMasters, ThatAreNotThereAreRefusedByName) {
  run_ranks(1, [](const ProcessGroup& group) {
    MasterTraining training(group);
    const auto refusal = [&](const NamedTensor& master) {
      return message_of<InputError>([&] { training.sharded.load_masters({master}); });
    };
    EXPECT_THAT(refusal({"3.weight", at::ones({2})}), HasSubstr("'3.weight' has no master weights here"));
    EXPECT_THAT(refusal({"0.weight", at::ones({2})}), HasSubstr("the state of 0.weight has the shape [2]; expected the parameter's, ["));
  });
}

}  // namespace
}  // namespace firkin
