// Programs under the strategy sharded: failed and skipped steps, joins, parameters and optimisers that change, checkpoints, refusals.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "layered_net.h"
#include "real_programs.h"
#include "sharded_training.h"
#include "throw_in_backward.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::HasSubstr;

// The layered net under a strategy, whose gradients every rank makes of its own batch.
struct Place {
  Place(const ProcessGroup& process_group, const std::string& strategy, const std::string& optimizer = "SGD",
        const std::function<void(DataParallelOptions&)>& set = {})
      : group(process_group), net(at::TensorOptions(at::kDouble)) {
    DataParallelOptions options = sharded_options(strategy, 256);
    if (set) set(options);
    training.emplace(*net, group, options, optimizer, ShardedOptions{.whole_parameters = strategy == kWhole});
  }
  at::Tensor loss(int step) { return net->forward(batch_of(step, group.rank, at::kDouble)).pow(2).mean(); }
  void train(int step) {
    if (training->plain) training->zero_grad();
    loss(step).backward();
    training->ddp.finish_gradient_synchronization();
    training->step();
  }
  Tensors parameters() { return copies(training->ddp.module().parameters()); }

  ProcessGroup group;
  LayeredNet net;
  std::optional<ShardedTraining> training;
};

using Program = std::function<void(Place&)>;

// The parameters that the program ends with, on every rank.
std::vector<Tensors> run(const std::string& strategy, const Program& program, const std::string& optimizer = "SGD", int ranks = 2,
                         const std::function<void(DataParallelOptions&)>& set = {}) {
  std::vector<Tensors> result(static_cast<size_t>(ranks));
  run_linked_ranks(ranks, kLateLink, [&](const ProcessGroup& group) {
    Place place(group, strategy, optimizer, set);
    program(place);
    result[static_cast<size_t>(group.rank)] = place.parameters();
  });
  return result;
}

void expect_as_bucketed(const Program& program, const std::string& optimizer = "SGD",
                        const std::function<void(DataParallelOptions&)>& set = {}) {
  const std::vector<Tensors> bucketed = run("bucketed", program, optimizer, 2, set);
  for (const std::string& strategy : kSharded) {
    for (const Tensors& rank : run(strategy, program, optimizer, 2, set)) EXPECT_TRUE(same_bits(rank, bucketed[0])) << strategy;
  }
}

TEST(Sharded, AFailedStepLeavesParametersAndStateAsTheyWereAndTheNextIsRight) {
  for (const bool finish_with_backward : {true, false}) {
    const auto set = [&](DataParallelOptions& options) { options.finish_with_backward = finish_with_backward; };
    const std::vector<Tensors> failed = run(
        "sharded",
        [](Place& place) {
          DataParallel& ddp = place.training->ddp;
          for (int step = 0; step < 8; ++step) {
            place.train(step);
            if (step % 2 == 0) continue;
            if (place.group.rank == 1 && step % 4 == 1) {
              ddp.abandon_step("no more memory");
            } else {
              const auto breaks = [](const at::Tensor& x) { return ThrowInBackward::apply(x, "on purpose"); };
              EXPECT_ANY_THROW({
                const at::Tensor x = batch_of(step, 7, at::kDouble);
                (place.group.rank == 1 ? place.net->forward(x, breaks) : place.net->forward(x)).mean().backward();
                ddp.finish_gradient_synchronization();
              });
            }
            ASSERT_TRUE(ddp.last_failure());
            EXPECT_EQ(ddp.last_failure()->rank, 1);
            for (const NamedTensor& part : trainable_parameters(ddp.module())) EXPECT_FALSE(part.tensor.grad().defined());
            place.training->step();  // does nothing
          }
        },
        "AdamW", 2, set);
    const auto well = [](Place& place) {
      for (int step = 0; step < 8; ++step) place.train(step);
    };
    EXPECT_TRUE(same_bits(failed[0], run("bucketed", well, "AdamW")[0]));
    EXPECT_TRUE(same_bits(failed[1], failed[0]));
  }
}

TEST(Sharded, AStepThatARankDidNotTakeFailsTheNextOnAllAndParametersStayEqual) {
  for (const bool on_one_rank : {true, false}) {
    const std::vector<Tensors> ranks = run("sharded", [on_one_rank](Place& place) {
      for (int step = 0; step < 3; ++step) place.train(step);
      place.loss(3).backward();
      if (on_one_rank && place.group.rank == 0) place.training->step();
      const std::string error = message_of<RuntimeError>([&] { place.loss(4).backward(); });
      EXPECT_THAT(error, HasSubstr("expected ShardedOptimizer::step() on every rank"));
      EXPECT_TRUE(place.training->ddp.last_failure());
      for (int step = 5; step < 7; ++step) place.train(step);
      EXPECT_FALSE(place.training->ddp.last_failure());
      place.training->ddp.audit();
    });
    EXPECT_TRUE(same_bits(ranks[0], ranks[1]));
  }
}

TEST(Sharded, AStepCanBeSkippedOnEveryRank) {
  expect_as_bucketed([](Place& place) {
    for (int step = 0; step < 4; ++step) {
      if (place.training->plain) place.training->zero_grad();
      place.loss(step).backward();
      if (step == 2) place.training->optimizer().zero_grad();
      place.training->step();
    }
  });
}

// Whose parameters are the same everywhere: each is stepped on one rank.
TEST(Sharded, AnOptionOfOneRankIsFoundByTheAudit) {
  run("sharded", [](Place& place) {
    for (const bool is_rate : {true, false}) {
      auto& options = static_cast<torch::optim::SGDOptions&>(place.training->optimizer().param_groups()[0].options());
      const torch::optim::SGDOptions before = options;
      place.train(0);
      place.training->ddp.audit();
      if (place.group.rank == 1)
        options = is_rate ? torch::optim::SGDOptions(before).lr(0.2) : torch::optim::SGDOptions(before).momentum(0.5);
      place.train(1);
      EXPECT_THAT(message_of<AuditError>([&] { place.training->ddp.audit(); }),
                  HasSubstr("the set of options of the optimiser's group 0 differs between rank 0 and rank 1"));
      options = before;
    }
  });
}

TEST(Sharded, AJoinAveragesOverTheRanksThatHaveData) {
  expect_as_bucketed([](Place& place) {
    auto join = place.training->ddp.join();
    for (int step = 0; step < (place.group.rank == 0 ? 2 : 5); ++step) place.train(step);
    join.finish([&] { place.training->step(); });
    for (int step = 10; step < 12; ++step) place.train(step);
  });
}

TEST(Sharded, UnusedParametersAreLeftAloneAndTheOthersAreTrained) {
  expect_as_bucketed(
      [](Place& place) {
        for (int step = 0; step < 6; ++step) {
          if (place.training->plain) place.training->zero_grad();
          const at::Tensor x = batch_of(step, place.group.rank, at::kDouble);
          const bool uses_all = step % 3 == 0 || (step % 3 == 1 && place.group.rank == 0);  // step 2: nobody
          (uses_all ? place.net->forward(x) : place.net->layers[0]->forward(x)).pow(2).mean().backward();
          place.training->step();
        }
      },
      "AdamW", [](DataParallelOptions& options) { options.find_unused_parameters = true; });
}

// What happens to the net, and to a plain optimiser with it.
void add_layer(Place& place, uint64_t seed) {
  place.net->layers.push_back(place.net->register_module("fourth", Layer(4, 4, at::TensorOptions(at::kDouble))));
  seed_parameters(*place.net->layers[3], seed);
  if (!place.training->plain) return;
  for (const at::Tensor& parameter : place.net->layers[3]->parameters()) {
    place.training->plain->param_groups()[0].params().push_back(parameter);
  }
}

// Its forward goes through the fourth layer, where there is one.
void train_all_layers(Place& place, int step) {
  if (place.training->plain) place.training->zero_grad();
  at::Tensor h = batch_of(step, place.group.rank, at::kDouble);
  for (Layer& layer : place.net->layers) h = layer->forward(h);
  h.pow(2).mean().backward();
  place.training->step();
}

TEST(Sharded, FrozenThawedAndAddedParametersAreTakenInByParametersChanged) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    expect_as_bucketed(
        [](Place& place) {
          at::Tensor& frozen = place.net->layers[1]->weight;
          for (int step = 0; step < 12; ++step) {
            if (step == 3 || step == 6) {
              frozen.set_requires_grad(step == 6);
              frozen.mutable_grad().reset();
            }
            if (step == 9) add_layer(place, 50 + static_cast<uint64_t>(place.group.rank));
            if (step % 3 == 0 && step > 0) place.training->ddp.parameters_changed();
            train_all_layers(place, step);
          }
        },
        optimizer);
  }
}

TEST(Sharded, AChangeWithoutAWordFailsTheStepOnAllRanksAndTheNextTakesItIn) {
  const std::vector<Tensors> ranks = run("sharded", [](Place& place) {
    for (int step = 0; step < 3; ++step) train_all_layers(place, step);
    add_layer(place, 50);
    EXPECT_THAT(message_of<StepError>([&] { train_all_layers(place, 3); }), HasSubstr("parameters_changed()"));
    const Tensors before = place.parameters();
    for (int step = 4; step < 7; ++step) train_all_layers(place, step);
    const Tensors after = place.parameters();
    for (size_t i = 0; i < after.size(); ++i) EXPECT_FALSE(at::equal(before[i], after[i]));
  });
  EXPECT_TRUE(same_bits(ranks[0], ranks[1]));
}

// Steps 0 to 3 on some ranks under one strategy; saved; steps 4 to 7 on others under another.
Tensors train_in_two_runs(int ranks_before, const std::string& before, int ranks_after, const std::string& after,
                          const std::string& optimizer) {
  Tensors saved;
  std::string state;
  const auto train_four = [](Place& place, int first) {
    for (int step = first; step < first + 4; ++step) {  // every rank has the same batch: their number does not matter
      if (place.training->plain) place.training->zero_grad();
      place.net->forward(batch_of(step, 0, at::kDouble)).pow(2).mean().backward();
      place.training->step();
    }
  };
  run_ranks(ranks_before, [&](const ProcessGroup& group) {
    Place place(group, before, optimizer);
    for (auto& each : place.training->optimizer().param_groups()) each.options().set_lr(0.03);
    train_four(place, 0);
    const auto whole = make_named_optimizer(optimizer, trainable_parameters(place.training->ddp.module()));
    const int last = group.size - 1;
    if (place.training->sharded) {
      place.training->sharded->gather_into(*whole, group.size == 2 ? std::nullopt : std::optional(last));
      EXPECT_EQ(whole->state().empty(), group.size > 2 && group.rank != last);
    }
    if (group.rank != last) return;
    saved = place.parameters();
    std::ostringstream file;
    torch::save(place.training->sharded ? *whole : *place.training->plain, file);
    state = file.str();
  });
  Tensors result;
  run_ranks(ranks_after, [&](const ProcessGroup& group) {
    Place place(group, after, optimizer);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; at::Tensor & parameter : place.net->parameters()) parameter.copy_(saved[i++]);
    const auto whole = make_named_optimizer(optimizer, trainable_parameters(place.training->ddp.module()));
    std::istringstream file(state);
    torch::load(place.training->sharded ? *whole : *place.training->plain, file);
    if (place.training->sharded) place.training->sharded->load_from(*whole);
    const at::AutoGradMode grad(true);
    train_four(place, 4);
    if (group.rank == 0) result = place.parameters();
  });
  return result;
}

TEST(Sharded, ACheckpointContinuesOnAnyNumberOfRanksAndInPlainTraining) {
  for (const char* optimizer : {"SGD", "AdamW", "RMSprop", "Adagrad", "Groups"}) {
    SCOPED_TRACE(optimizer);
    const Tensors plain = train_in_two_runs(2, "bucketed", 2, "bucketed", optimizer);
    EXPECT_TRUE(same_bits(train_in_two_runs(2, "sharded", 2, "sharded", optimizer), plain));
    EXPECT_TRUE(same_bits(train_in_two_runs(2, "sharded", 2, "bucketed", optimizer), plain));
    EXPECT_TRUE(same_bits(train_in_two_runs(2, "bucketed", 2, "sharded", optimizer), plain));
    EXPECT_TRUE(same_bits(train_in_two_runs(2, kWhole, 2, "sharded", optimizer), plain));
    EXPECT_LE(relative_difference(train_in_two_runs(3, "sharded", 2, kWhole, optimizer), plain), 1e-12);
    EXPECT_LE(relative_difference(train_in_two_runs(4, "sharded", 2, "sharded", optimizer), plain), 1e-12);
    EXPECT_LE(relative_difference(train_in_two_runs(1, "sharded", 3, "sharded", optimizer), plain), 1e-12);
  }
}

// Where some ranks have no data, also of a bucket that travels in pieces.
TEST(Sharded, TheMeanIsOverTheRanksThatHaveData) {
  run_ranks(2, [](const ProcessGroup& group) {
    for (const int64_t width : {8, 1600}) {  // 256 bytes; 10 MB
      std::vector<Tensors> trained;
      for (const char* strategy : {"bucketed", "sharded"}) {
        torch::nn::Linear net(torch::nn::LinearOptions(width, width).bias(false));
        seed_parameters(*net, 1);
        ShardedTraining training(*net, group, sharded_options(strategy, /*cap_bytes=*/1 << 30), "Plain");
        {
          auto join = training.ddp.join();
          for (int step = 0; step < (group.rank == 0 ? 3 : 1); ++step) {
            if (training.plain) training.zero_grad();
            net->forward(at::full({1, width}, 0.1 * (step + 1))).pow(2).mean().backward();
            training.step();
          }
          join.finish([&] { training.step(); });
        }
        trained.push_back(copies(training.ddp.module().parameters()));
      }
      EXPECT_TRUE(same_bits(trained[0], trained[1])) << width;
    }
  });
}

TEST(Sharded, AParameterMayGetOtherMemory) {
  expect_as_bucketed([](Place& place) {
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        for (at::Tensor& parameter : place.training->ddp.module().parameters()) parameter.set_data(parameter.detach().clone());
      }
      place.train(step);
    }
  });
}

// That rank's step() throws; it still owes the others its parts, and its next step says so.
TEST(Sharded, AParameterWhoseMemoryCannotBeFollowedFailsTheNextStepOnAllRanksAndHoldsUpNone) {
  const std::vector<Tensors> ranks = run("sharded", [](Place& place) {
    for (int step = 0; step < 3; ++step) place.train(step);
    place.loss(3).backward();
    Tensors parameters = place.training->ddp.module().parameters();
    if (place.group.rank == 0) {
      place.training->step();
    } else {
      Tensors whole;
      for (at::Tensor& parameter : parameters) {
        whole.push_back(parameter.variable_data());
        parameter.set_data(at::zeros({1}, at::kDouble));
      }
      EXPECT_THROW(place.training->step(), c10::Error);
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(whole[i]);
    }
    EXPECT_THAT(message_of<RuntimeError>([&] { place.loss(4).backward(); }), HasSubstr("expected ShardedOptimizer::step() on every rank"));
    for (int step = 5; step < 7; ++step) place.train(step);
    EXPECT_FALSE(place.training->ddp.last_failure());
    place.training->ddp.audit();
  });
  EXPECT_TRUE(same_bits(ranks[0], ranks[1]));
}

TEST(Sharded, TheAuditFindsADamagedParameter) {
  run("sharded", [](Place& place) {
    for (int step = 0; step < 3; ++step) place.train(step);
    if (place.group.rank == 1) place.training->ddp.module().parameters()[0].data()[0][0] += 1;
    EXPECT_THAT(message_of<AuditError>([&] { place.training->ddp.audit(); }), HasSubstr("first.weight"));
  });
}

TEST(Sharded, AModuleThatStopsAwaitingFailsTheStepOnAllRanks) {
  run("sharded", [](Place& place) {
    for (int step = 0; step < 3; ++step) place.train(step);
    const bool awaits = place.group.rank != 1;
    const at::Tensor x = batch_of(3, place.group.rank, at::kDouble);
    const at::Tensor first = place.net->layers[0]->forward(x);
    const Layer& second = place.net->layers[1];
    const at::Tensor h = awaits ? place.net->layers[1]->forward(first) : torch::tanh(at::matmul(first, second->weight) + second->bias);
    EXPECT_THAT(message_of<RuntimeError>([&] { place.net->layers[2]->forward(h).mean().backward(); }),
                HasSubstr("did not call await_parameters()"));
    EXPECT_EQ(place.training->ddp.last_failure()->rank, 1);
    place.train(4);
    EXPECT_FALSE(place.training->ddp.last_failure());
  });
}

TEST(Sharded, AnOptimizerThatThrowsOnOneRankLosesTheGroupOnAll) {
  struct Throwing : torch::optim::SGD {
    using torch::optim::SGD::SGD;
    at::Tensor step(LossClosure /*closure*/) override { throw OnPurpose("no more memory for the state"); }
  };
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    DataParallel ddp(*net, group, sharded_options("sharded", 256));
    ShardedOptimizer sharded(ddp, [&](const std::vector<NamedTensor>& parts) -> std::unique_ptr<torch::optim::Optimizer> {
      const torch::optim::SGDOptions options(0.1);
      if (group.rank == 1) return std::make_unique<Throwing>(tensors_of(parts), options);
      return std::make_unique<torch::optim::SGD>(tensors_of(parts), options);
    });
    const auto train_two = [&] {
      for (int step = 0; step < 2; ++step) {
        net->forward(batch_of(step, group.rank, at::kDouble)).mean().backward();
        sharded.step();
      }
    };
    EXPECT_THAT(message_of<GroupError>(train_two), HasSubstr("no more memory for the state"));
  });
}

TEST(Sharded, RefusesInOneLineWhatItDoesNotSupport) {
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    const auto refusal = [&](const std::function<void(DataParallelOptions&)>& set) {
      DataParallelOptions options = sharded_options("sharded");
      set(options);
      return message_of<InputError>([&] { DataParallel(*net, group, options); });
    };
    EXPECT_THAT(refusal([](auto& options) { options.gradient_hook = bf16_compression(); }), HasSubstr("gradient hook"));
    EXPECT_THAT(refusal([](auto& options) { options.buckets = automatic(); }), HasSubstr("strategy sharded; expected bucketed or ordered"));
    EXPECT_THAT(refusal([](auto& options) { options.plan = BucketPlan{{{0, 1, 0, 2}, {0, 1, 1, 2}, {1, 5}}, {}}; }), HasSubstr("splits"));

    DataParallel plain(*net, group, {});
    const auto make = [](const std::vector<NamedTensor>& parts) { return make_named_optimizer("SGD", parts); };
    EXPECT_THAT(message_of<InputError>([&] { ShardedOptimizer(plain, make); }), HasSubstr("under another strategy"));
  });
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    DataParallel ddp(*net, group, sharded_options("sharded"));
    EXPECT_THAT(message_of<RuntimeError>([&] { net->forward(batch_of(0, 0, at::kDouble)).mean().backward(); }),
                HasSubstr("expected a ShardedOptimizer"));
    const auto refusal = [&](const ShardedOptimizer::MakeOptimizer& make) {
      return message_of<InputError>([&] { ShardedOptimizer(ddp, make); });
    };
    EXPECT_THAT(refusal([](const auto& parts) { return std::make_unique<torch::optim::LBFGS>(tensors_of(parts)); }),
                HasSubstr("expected LibTorch's SGD"));
    EXPECT_THAT(refusal([&](const auto& /*parts*/) { return std::make_unique<torch::optim::SGD>(net->parameters(), 0.1); }),
                HasSubstr("not one of the parts"));
    EXPECT_THAT(refusal([](const auto& /*parts*/) { return nullptr; }), HasSubstr("make_optimizer"));
    ShardedOptimizer sharded(ddp, [](const std::vector<NamedTensor>& parts) { return make_named_optimizer("SGD", parts); });
    EXPECT_THAT(refusal([](const auto& parts) { return make_named_optimizer("SGD", parts); }), HasSubstr("already"));
    torch::optim::SGD whole(net->parameters(), 0.1);
    torch::optim::AdamW other(net->parameters());
    EXPECT_THAT(message_of<InputError>([&] { sharded.gather_into(other); }), HasSubstr("another class"));
    EXPECT_THAT(message_of<InputError>([&] { sharded.load_from(other); }), HasSubstr("another class"));
    OverlappedOptimizer overlapped(ddp, whole);
    EXPECT_THAT(message_of<InputError>([&] { overlapped.step(); }), HasSubstr("expected a ShardedOptimizer"));
    net->forward(batch_of(1, 0, at::kDouble)).mean().backward();
    sharded.step();
  });
}

// Slices of other lengths than the others expect would be added up as if they were the same elements.
TEST(Sharded, RanksThatDivideDifferentlyAreToldSo) {
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    DataParallel ddp(*net, group, sharded_options("sharded"));
    const auto make = [](const std::vector<NamedTensor>& parts) { return make_named_optimizer("SGD", parts); };
    const ShardedOptions whole = {.whole_parameters = group.rank == 1}, masters = {.master_weights = group.rank == 0};
    EXPECT_THAT(message_of<InputError>([&] { ShardedOptimizer(ddp, make, whole); }),
                HasSubstr("rank 0 has whole_parameters false; rank 1 has whole_parameters true"));
    EXPECT_THAT(message_of<InputError>([&] { ShardedOptimizer(ddp, make, masters); }), HasSubstr("rank 0 has master_weights true"));
    ShardedOptimizer sharded(ddp, make);
    net->forward(batch_of(1, 0, at::kDouble)).mean().backward();
    sharded.step();
  });
}

}  // namespace
}  // namespace firkin
