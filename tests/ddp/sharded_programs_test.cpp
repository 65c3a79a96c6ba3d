// Programs under the strategy sharded: failed and skipped steps, joins, parameters and optimisers that change, checkpoints, refusals.

#include <sstream>

#include "../test.h"
#include "autograd_functions.h"
#include "programs.h"

namespace firkin {
namespace {

TEST(Sharded, AFailedStepLeavesParametersAndStateAsTheyWereAndTheNextIsRight) {
  for (const bool finish_with_backward : {true, false}) {
    const auto set = [&](DataParallelOptions& options) { options.finish_with_backward = finish_with_backward; };
    const Tensors failed = run_late("sharded",
                                    [](Place& place) {
                                      DataParallel& ddp = place.training.ddp;
                                      for (int step = 0; step < 8; ++step) {
                                        place.train(step);
                                        if (step % 2 == 0) continue;
                                        if (place.group.rank == 1 && step % 4 == 1) {
                                          ddp.abandon_step("no more memory");
                                        } else {
                                          const auto breaks = [](const at::Tensor& x) { return ThrowInBackward::apply(x, "on purpose"); };
                                          EXPECT_ANY_THROW({
                                            const at::Tensor x = batch_of(step, 7, at::kDouble);
                                            (place.group.rank == 1 ? place.net.forward(x, breaks) : place.net.forward(x)).mean().backward();
                                            ddp.finish_gradient_synchronization();
                                          });
                                        }
                                        ASSERT_TRUE(ddp.last_failure());
                                        EXPECT_EQ(ddp.last_failure()->rank, 1);
                                        for (const NamedTensor& part : trainable_parameters(ddp.module()))
                                          EXPECT_FALSE(part.tensor.grad().defined());
                                        place.training.step();  // does nothing
                                      }
                                    },
                                    {.optimizer = "AdamW", .set = set});
    const auto well = [](Place& place) { place.train(0, 8); };
    EXPECT_TRUE(same_bits(failed, run_late("bucketed", well, {.optimizer = "AdamW"})));
  }
}

TEST(Sharded, AStepThatARankDidNotTakeFailsTheNextOnAllAndParametersStayEqual) {
  for (const bool on_one_rank : {true, false}) {
    run_late("sharded", [on_one_rank](Place& place) {
      place.train(0, 3);
      place.loss(3).backward();
      if (on_one_rank && place.group.rank == 0) place.training.step();
      const std::string error = message_of<RuntimeError>([&] { place.loss(4).backward(); });
      EXPECT_THAT(error, HasSubstr("expected ShardedOptimizer::step() on every rank"));
      EXPECT_TRUE(place.training.ddp.last_failure());
      place.train(5, 7);
      EXPECT_FALSE(place.training.ddp.last_failure());
      place.training.ddp.audit();
    });
  }
}

TEST(Sharded, AStepCanBeSkippedOnEveryRank) {
  expect_as_bucketed(kSharded, [](Place& place) {
    for (int step = 0; step < 4; ++step) {
      place.backward(step);
      if (step == 2) place.training.optimizer().zero_grad();
      place.training.step();
    }
  });
}

// Whose parameters are the same everywhere: each is stepped on one rank.
TEST(Sharded, AnOptionOfOneRankIsFoundByTheAudit) {
  run_late("sharded", [](Place& place) {
    for (const bool is_rate : {true, false}) {
      auto& options = static_cast<torch::optim::SGDOptions&>(place.training.optimizer().param_groups()[0].options());
      const torch::optim::SGDOptions before = options;
      place.train(0);
      place.training.ddp.audit();
      if (place.group.rank == 1)
        options = is_rate ? torch::optim::SGDOptions(before).lr(0.2) : torch::optim::SGDOptions(before).momentum(0.5);
      place.train(1);
      EXPECT_THAT(message_of<AuditError>([&] { place.training.ddp.audit(); }),
                  HasSubstr("the set of options of the optimiser's group 0 differs between rank 0 and rank 1"));
      options = before;
    }
  });
}

TEST(Sharded, AJoinAveragesOverTheRanksThatHaveData) {
  expect_as_bucketed(kSharded, [](Place& place) {
    for (int step = 0; step < (place.group.rank == 0 ? 2 : 5); ++step) place.train(step);
    place.training.ddp.join([&] { place.training.step(); });
    place.train(10, 12);
  });
}

TEST(Sharded, UnusedParametersAreLeftAloneAndTheOthersAreTrained) {
  expect_as_bucketed(kSharded,
                     [](Place& place) {
                       for (int step = 0; step < 6; ++step) {
                         place.training.zero_grad();
                         const at::Tensor x = place.batch(step);
                         const bool uses_all = step % 3 == 0 || (step % 3 == 1 && place.group.rank == 0);  // step 2: nobody
                         (uses_all ? place.net.forward(x) : place.net.body->layers[0]->forward(x)).pow(2).mean().backward();
                         place.training.step();
                       }
                     },
                     {.optimizer = "AdamW", .set = [](DataParallelOptions& options) { options.find_unused_parameters = true; }});
}

// What happens to the net, and to a plain optimiser with it.
void add_layer(Place& place, uint64_t seed) {
  place.net.body->layers.push_back(place.net.body->register_module("fourth", Layer(4, 4, at::TensorOptions(at::kDouble))));
  seed_parameters(*place.net.body->layers[3], seed);
  if (!place.training.plain) return;
  for (const at::Tensor& parameter : place.net.body->layers[3]->parameters()) {
    place.training.plain->param_groups()[0].params().push_back(parameter);
  }
}

TEST(Sharded, FrozenThawedAndAddedParametersAreTakenInByParametersChanged) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    expect_as_bucketed(kSharded,
                       [](Place& place) {
                         at::Tensor& frozen = place.net.body->layers[1]->weight;
                         for (int step = 0; step < 12; ++step) {
                           if (step == 3 || step == 6) {
                             frozen.set_requires_grad(step == 6);
                             frozen.mutable_grad().reset();
                           }
                           if (step == 9) add_layer(place, 50 + static_cast<uint64_t>(place.group.rank));
                           if (step % 3 == 0 && step > 0) place.training.ddp.parameters_changed();
                           place.train(step);
                         }
                       },
                       {.optimizer = optimizer});
  }
}

TEST(Sharded, AChangeWithoutAWordFailsTheStepOnAllRanksAndTheNextTakesItIn) {
  run_late("sharded", [](Place& place) {
    place.train(0, 3);
    add_layer(place, 50);
    EXPECT_THAT(message_of<StepError>([&] { place.train(3); }), HasSubstr("parameters_changed()"));
    const Tensors before = place.parameters();
    place.train(4, 7);
    const Tensors after = place.parameters();
    for (size_t i = 0; i < after.size(); ++i) EXPECT_FALSE(at::equal(before[i], after[i]));
  });
}

// Steps 0 to 3 on some ranks under one strategy; saved; steps 4 to 7 on others under another.
struct TwoRuns {
  int ranks_before;
  const char* before;
  int ranks_after;
  const char* after;
};

void train_four(Place& place, int first) {
  for (int step = first; step < first + 4; ++step) {  // every rank has the same batch: their number does not matter
    place.training.zero_grad();
    place.net.forward(batch_of(step, 0, at::kDouble)).pow(2).mean().backward();
    place.training.step();
  }
}

Tensors parameters_after(const TwoRuns& runs, const std::string& optimizer) {
  Tensors saved;
  std::string state;
  run_ranks(runs.ranks_before, [&](const ProcessGroup& group) {
    Place place(group, runs.before, {.optimizer = optimizer});
    for (auto& each : place.training.optimizer().param_groups()) each.options().set_lr(0.03);
    train_four(place, 0);
    const auto whole = make_named_optimizer(optimizer, trainable_parameters(place.training.ddp.module()));
    const int last = group.size - 1;
    if (place.training.sharded) {
      place.training.sharded->gather_into(*whole, group.size == 2 ? std::nullopt : std::optional(last));
      EXPECT_EQ(whole->state().empty(), group.size > 2 && group.rank != last);
    }
    if (group.rank != last) return;
    saved = place.parameters();
    std::ostringstream file;
    torch::save(place.training.sharded ? *whole : *place.training.plain, file);
    state = file.str();
  });
  Tensors result;
  run_ranks(runs.ranks_after, [&](const ProcessGroup& group) {
    Place place(group, runs.after, {.optimizer = optimizer});
    for (size_t i = 0; const at::Tensor& parameter : place.net.parameters()) parameter.detach().copy_(saved[i++]);
    const auto whole = make_named_optimizer(optimizer, trainable_parameters(place.training.ddp.module()));
    std::istringstream file(state);
    torch::load(place.training.sharded ? *whole : *place.training.plain, file);
    if (place.training.sharded) place.training.sharded->load_from(*whole);
    train_four(place, 4);
    if (group.rank == 0) result = place.parameters();
  });
  return result;
}

TEST(Sharded, ACheckpointContinuesOnAnyNumberOfRanksAndInPlainTraining) {
  for (const std::string optimizer : {"SGD", "AdamW", "RMSprop", "Adagrad", "Groups"}) {
    SCOPED_TRACE(optimizer);
    const Tensors plain = parameters_after({2, "bucketed", 2, "bucketed"}, optimizer);
    for (const TwoRuns& runs : {TwoRuns{2, "sharded", 2, "bucketed"}, {2, "bucketed", 2, "sharded"}, {2, kWhole, 2, "sharded"}}) {
      EXPECT_TRUE(same_bits(parameters_after(runs, optimizer), plain)) << runs.before << " to " << runs.after;
    }
    if (optimizer != "AdamW" && optimizer != "Groups") continue;  // how many ranks there are is none of an optimiser's business
    for (const TwoRuns& runs : {TwoRuns{3, "sharded", 2, kWhole}, {4, "sharded", 2, "sharded"}, {1, "sharded", 3, "sharded"}}) {
      EXPECT_LE(relative_difference(parameters_after(runs, optimizer), plain), 1e-12) << runs.ranks_before << " to " << runs.ranks_after;
    }
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
        Training training(*net, group, with_strategy(strategy, /*cap_bytes=*/1 << 30), "Plain");
        for (int step = 0; step < (group.rank == 0 ? 3 : 1); ++step) {
          training.zero_grad();
          net->forward(at::full({1, width}, 0.1 * (step + 1))).pow(2).mean().backward();
          training.step();
        }
        training.ddp.join([&] { training.step(); });
        trained.push_back(copies(training.ddp.module().parameters()));
      }
      EXPECT_TRUE(same_bits(trained[0], trained[1])) << width;
    }
  });
}

TEST(Sharded, AParameterMayGetOtherMemory) {
  expect_as_bucketed(kSharded, [](Place& place) {
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        for (at::Tensor& parameter : place.training.ddp.module().parameters()) parameter.set_data(parameter.detach().clone());
      }
      place.train(step);
    }
  });
}

TEST(Sharded, AParameterOfAnotherLayoutIsRefused) {
  run_late("sharded", [](Place& place) {
    place.train(0, 2);
    place.training.ddp.drain();
    at::Tensor weight = place.net.body->layers[0]->weight;
    weight.set_data(weight.detach().t().contiguous().t());
    place.backward(2);
    EXPECT_THAT(message_of<InputError>([&] { place.training.step(); }),
                HasSubstr("memory layout of body.first.weight changed after wrapping"));
  });
}

TEST(Sharded, TheForwardAfterAStepWaitsAlsoIfOneBeforeItHasWaited) {
  expect_as_bucketed(kSharded, [](Place& place) {
    for (int step = 0; step < 6; ++step) {
      place.backward(step);
      const at::NoGradGuard no_grad;
      place.loss(step);
      place.training.step();
    }
  });
}

// That rank's step() throws; it still owes the others its parts, and its next step says so.
TEST(Sharded, AParameterWhoseMemoryCannotBeFollowedFailsTheNextStepOnAllRanksAndHoldsUpNone) {
  run_late("sharded", [](Place& place) {
    place.train(0, 3);
    place.loss(3).backward();
    Tensors parameters = place.training.ddp.module().parameters();
    if (place.group.rank == 0) {
      place.training.step();
    } else {
      Tensors whole;
      for (at::Tensor& parameter : parameters) {
        whole.push_back(parameter.variable_data());
        parameter.set_data(at::zeros({1}, at::kDouble));
      }
      EXPECT_THROW(place.training.step(), InputError);
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(whole[i]);
    }
    EXPECT_THAT(message_of<RuntimeError>([&] { place.loss(4).backward(); }), HasSubstr("expected ShardedOptimizer::step() on every rank"));
    place.train(5, 7);
    EXPECT_FALSE(place.training.ddp.last_failure());
    place.training.ddp.audit();
  });
}

TEST(Sharded, TheAuditFindsADamagedParameter) {
  run_late("sharded", [](Place& place) {
    place.train(0, 3);
    at::Tensor first = place.training.ddp.module().parameters()[0].data()[0][0], before = first.clone();
    if (place.group.rank == 1) first += 1;
    EXPECT_THAT(message_of<AuditError>([&] { place.training.ddp.audit(); }), HasSubstr("first.weight"));
    first.copy_(before);
  });
}

TEST(Sharded, AnOptimizerThatThrowsOnOneRankLosesTheGroupOnAll) {
  struct Throwing : torch::optim::SGD {
    using torch::optim::SGD::SGD;
    at::Tensor step(LossClosure /*closure*/) override { throw OnPurpose("no more memory for the state"); }
  };
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    DataParallel ddp(*net, group, with_strategy("sharded", 256));
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

std::unique_ptr<torch::optim::Optimizer> make_sgd(const std::vector<NamedTensor>& parts) {
  return make_named_optimizer("SGD", parts);
}

TEST(Sharded, RefusesInOneLineWhatItDoesNotSupport) {
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    const auto refusal = [&](const std::function<void(DataParallelOptions&)>& set) {
      DataParallelOptions options = with_strategy("sharded");
      set(options);
      return message_of<InputError>([&] { DataParallel(*net, group, options); });
    };
    EXPECT_THAT(refusal([](auto& options) { options.gradient_hook = bf16_compression(); }), HasSubstr("gradient hook"));
    EXPECT_THAT(refusal([](auto& options) { options.buckets = automatic(); }), HasSubstr("strategy sharded; expected bucketed or ordered"));

    DataParallel plain(*net, group, {});
    EXPECT_THAT(message_of<InputError>([&] { ShardedOptimizer(plain, make_sgd); }), HasSubstr("under another strategy"));
  });
  run_ranks(2, [](const ProcessGroup& group) {
    LayeredNet net(at::TensorOptions(at::kDouble));
    DataParallel ddp(*net, group, with_strategy("sharded"));
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
    ShardedOptimizer sharded(ddp, make_sgd);
    EXPECT_THAT(refusal(make_sgd), HasSubstr("already"));
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
    DataParallel ddp(*net, group, with_strategy("sharded"));
    const ShardedOptions whole = {.whole_parameters = group.rank == 1}, masters = {.master_weights = group.rank == 0};
    EXPECT_THAT(message_of<InputError>([&] { ShardedOptimizer(ddp, make_sgd, whole); }),
                HasSubstr("rank 0 has whole_parameters false; rank 1 has whole_parameters true"));
    EXPECT_THAT(message_of<InputError>([&] { ShardedOptimizer(ddp, make_sgd, masters); }), HasSubstr("rank 0 has master_weights true"));
    ShardedOptimizer sharded(ddp, make_sgd);
    net->forward(batch_of(1, 0, at::kDouble)).mean().backward();
    sharded.step();
  });
}

}  // namespace
}  // namespace firkin
