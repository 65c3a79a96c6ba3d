// Programs that people really write, on 2 and 3 ranks: what comes out is what one process computes from the batches of all ranks, and the
// same bits on every rank, or every rank has the same error, which says what to do.
#include "real_programs.h"

#include <chrono>

#include "throw_in_backward.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class RealPrograms : public OnRanks {};

constexpr int kSteps = 6;

void expect_no_gradients(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) EXPECT_FALSE(parameter.value().grad().defined()) << parameter.key();
}

// Two modules of one size on one group, as generator and critic are; one rank's forward of the first throws.

struct Pair {
  explicit Pair(const World& world)
      : first(world.seed()),
        second(world.seed() + 50),
        ddp_first(world.wrap(first)),
        ddp_second(world.wrap(second)),
        optimizer_first(sgd(first)),
        optimizer_second(sgd(second)) {}
  Tensors parameters() const {
    Tensors all = copies(first.parameters());
    for (const at::Tensor& parameter : copies(second.parameters())) all.push_back(parameter);
    return all;
  }
  Net first, second;
  std::unique_ptr<DataParallel> ddp_first, ddp_second;
  torch::optim::SGD optimizer_first, optimizer_second;
};

TEST_P(RealPrograms, AfterAForwardThatThrewAHandlerThatAbandonsMayGoOnWithTheSecondModule) {
  expect_what_one_process_computes([](World& world) {
    Pair pair(world);
    const int throwing_step = world.repeat() % 4;
    for (int step = 0; step < kSteps; ++step) {
      const bool throws = step == throwing_step;
      if (!throws || !world.is_alone()) {
        const std::string error = error_of([&] {
          if (throws && world.is_offender()) throw OnPurpose("no more memory");
          world.train(pair.ddp_first.get(), pair.first, pair.optimizer_first, step);
        });
        if (throws && world.is_offender()) pair.ddp_first->abandon_step(error);
        EXPECT_THAT(error, throws ? HasSubstr("no more memory") : HasSubstr(""));
        EXPECT_EQ(error.empty(), !throws);
        if (!world.is_alone()) world.note(pair.ddp_first->last_failure());
      }
      world.train(pair.ddp_second.get(), pair.second, pair.optimizer_second, step);
    }
    return pair.parameters();
  });
}

// Trains the first module on all ranks but the offender, and the second one on that. Returns what every rank hears.
std::string step_different_modules(World& world, Pair& pair, int step) {
  const auto started = std::chrono::steady_clock::now();
  std::string heard;
  try {
    try {
      if (world.is_offender()) throw OnPurpose("no more memory");
      world.train(pair.ddp_first.get(), pair.first, pair.optimizer_first, step);
    } catch (const OnPurpose&) {  // and goes on, without a word
    }
    world.train(pair.ddp_second.get(), pair.second, pair.optimizer_second, step);
  } catch (const GroupError& error) {
    heard = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(10)) << "about 5 s are promised";
  return heard;
}

TEST_P(RealPrograms, RanksThatStepTwoModulesInDifferentOrdersAllHearWhichTwo) {
  expect_the_same_on_every_rank(
      [](World& world) {
        Pair pair(world);
        const int straying_step = world.repeat() % 4;
        for (int step = 0; step < straying_step; ++step) {
          world.train(pair.ddp_first.get(), pair.first, pair.optimizer_first, step);
          world.train(pair.ddp_second.get(), pair.second, pair.optimizer_second, step);
        }
        EXPECT_THAT(step_different_modules(world, pair, straying_step), AllOf(HasSubstr("module 0"), HasSubstr("module 1")));
        for (const auto& ddp : {pair.ddp_first.get(), pair.ddp_second.get()}) {
          EXPECT_THROW(ddp->abandon_step("goes on"), GroupError) << "the group is lost for both";
        }
        return pair.parameters();  // no optimiser has stepped on what belongs to the other module
      },
      {}, /*at_once=*/5);
}

TEST_P(RealPrograms, TheModulesAreCalledByTheirNamesWhereTheyHaveSome) {
  expect_the_same_on_every_rank(
      [](World& world) {
        Net generator(world.seed());
        Net critic(world.seed() + 50);
        DataParallelOptions options;
        options.name = "generator";
        DataParallel of_generator(generator, world.group(), options);
        options.name = "critic";
        DataParallel of_critic(critic, world.group(), options);
        const std::string error = message_of<GroupError>([&] {
          world.backward(world.is_offender() ? &of_critic : &of_generator, world.loss(world.is_offender() ? critic : generator, 0));
        });
        EXPECT_THAT(error, AllOf(HasSubstr("generator"), HasSubstr("critic")));
        return copies(generator.parameters());
      },
      2, /*at_once=*/2);
}

// A penalty on the gradients.

TEST_P(RealPrograms, ABackwardThatCreatesAGraphFailsTheStepOnEveryRankAndTheNextStepWorks) {
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < kSteps; ++step) {
      if (step != world.repeat() % 4) {
        world.train(ddp, net, optimizer, step);
        continue;
      }
      if (world.is_alone()) continue;
      const bool creates_graph = world.repeat() % 3 == 0 || world.is_offender();  // on every rank, or on one
      const std::string error = error_of([&] {
        optimizer.zero_grad();
        const at::Tensor loss = world.loss(net, step);
        loss.backward({}, /*retain_graph=*/creates_graph, creates_graph);
        ddp->finish_gradient_synchronization();
        at::Tensor penalty = at::zeros({}, at::kDouble);
        for (const at::Tensor& parameter : net.parameters()) penalty = penalty + parameter.grad().pow(2).sum();
        world.backward(ddp, penalty);
        optimizer.step();
      });
      EXPECT_THAT(error, HasSubstr("create_graph"));
      expect_no_gradients(net);
      world.note(ddp->last_failure());
    }
  }));
}

TEST_P(RealPrograms, APenaltyOnGradientsThatAutogradGradComputesIsPartOfTheLoss) {
  expect_what_one_process_computes([](World& world) {
    Net net(world.seed());
    const auto ddp = world.wrap(net);
    torch::optim::SGD optimizer = sgd(net);
    const auto penalised = [&net](const at::Tensor& x) {
      const at::Tensor loss = net.loss(x);
      at::Tensor penalty = at::zeros({}, at::kDouble);
      for (const at::Tensor& gradient :
           torch::autograd::grad({loss}, net.parameters(), /*grad_outputs=*/{}, /*retain_graph=*/true, /*create_graph=*/true)) {
        penalty = penalty + gradient.pow(2).sum();
      }
      return loss + 0.5 * penalty;
    };
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad(world.zeroes_to_none());
      world.backward(ddp.get(), world.mean_loss(step, penalised));
      optimizer.step();
    }
    return copies(net.parameters());
  });
}

// Gradients that are beyond float16 before they are divided, on one rank.

TEST_P(RealPrograms, Fp16CompressionDividesBeforeItCasts) {
  expect_the_same_on_every_rank([](World& world) {
    struct Module : torch::nn::Module {
      at::Tensor narrow = register_parameter("narrow", at::zeros({5}));
      at::Tensor wide = register_parameter("wide", at::zeros({3}, at::kDouble));
    } module;
    DataParallelOptions options = world.options();
    options.gradient_hook = fp16_compression();
    const auto ddp = world.wrap(module, options);
    for (int step = 0; step < 3; ++step) {  // the gradient is autograd's own, or lies in its bucket already
      module.zero_grad(/*set_to_none=*/step < 2);
      const double scale = world.is_offender() ? 1e5 : 0;
      world.backward(ddp.get(), module.narrow.sum() * scale + module.wide.sum() * scale);
      for (const at::Tensor& parameter : module.parameters()) {
        EXPECT_TRUE(at::allclose(parameter.grad(), at::full_like(parameter, 1e5 / world.size()), 1.0 / 1024)) << parameter.grad();
      }
    }
    return copies({module.narrow.grad(), module.wide.grad()});
  });
}

// A backward under no_sync() after the step's own, an auxiliary loss say, and then the optimiser's step. (Who goes back before he steps
// does the same at first: followed_modules_test.cpp. So the rank's suspicion makes all compare in the step after the next.)

TEST_P(RealPrograms, ParametersThatWereSteppedWithGradientsOfNoSyncFailTheStepAfterTheNextOnEveryRank) {
  expect_what_one_process_computes([](World& world) {
    Net net(world.seed());
    const auto ddp = world.wrap(net);
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
    const int offence = world.repeat() % 3;
    for (int step = 0; step < offence; ++step) world.train(ddp.get(), net, optimizer, step);
    const Tensors saved = copies(net.parameters());
    if (!world.is_alone()) {
      optimizer.zero_grad(world.zeroes_to_none());
      world.backward(ddp.get(), world.loss(net, offence));
      if (world.repeat() % 4 == 0 || world.is_offender()) {  // on every rank, or on one
        const auto scope = ddp->no_sync();
        world.loss(net, offence, /*micro=*/1).backward();
      }
      optimizer.step();
      world.train(ddp.get(), net, optimizer, offence + 1);
      EXPECT_THAT(message_of<AuditError>([&] { world.train(ddp.get(), net, optimizer, offence + 2); }),
                  AllOf(HasSubstr("no_sync"), HasSubstr("differs between rank 0 and rank ")));
      expect_no_gradients(net);
      world.note(ddp->last_failure());
    }
    {  // back to the checkpoint, and on
      at::NoGradGuard no_grad;
      for (size_t i = 0; i < saved.size(); ++i) net.parameters()[i].copy_(saved[i]);
    }
    for (int step = offence + 3; step < kSteps; ++step) world.train(ddp.get(), net, optimizer, step);
    return copies(net.parameters());
  });
}

TEST_P(RealPrograms, GradientsOfNoSyncThatAreDroppedBeforeTheStepAreNoOffence) {
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < kSteps; ++step) {
      if (!world.is_alone()) {  // measures how noisy its own gradients are
        const auto scope = ddp->no_sync();
        optimizer.zero_grad();
        world.loss(net, step, /*micro=*/1).backward();
        optimizer.zero_grad();
      }
      world.train(ddp, net, optimizer, step);
    }
  }));
}

// One rank has another learning rate: a flag was parsed differently, a schedule counts a step more.

TEST_P(RealPrograms, RanksWithDifferentLearningRatesHearOfItInTheNextAudit) {
  expect_what_one_process_computes([](World& world) {
    constexpr int64_t kAuditEvery = 4;
    Net net(world.seed());
    DataParallelOptions options = world.options();
    options.audit_every = kAuditEvery;
    const auto ddp = world.wrap(net, options);
    torch::optim::SGD optimizer = sgd(net);
    const int before = world.repeat() % 5;
    for (int step = 0; step < before; ++step) world.train(ddp.get(), net, optimizer, step);
    const Tensors saved = copies(net.parameters());
    auto& rate = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
    if (world.is_offender()) rate.lr(0.1000001);
    std::string error;
    for (int step = before; !world.is_alone() && error.empty() && step <= before + kAuditEvery; ++step) {
      error = message_of<AuditError>([&] { world.train(ddp.get(), net, optimizer, step); });
      world.note(error);
    }
    if (!world.is_alone()) {
      const int other = std::max(world.offender(), 1);  // than rank 0, or, where that is the offender, the first one that differs from it
      EXPECT_THAT(error, AllOf(HasSubstr("first.weight"), ContainsRegex(fmt::format("ranks? 0 .*{}", other))));
      expect_no_gradients(net);
    }
    {  // back to the checkpoint, and on
      at::NoGradGuard no_grad;
      for (size_t i = 0; i < saved.size(); ++i) net.parameters()[i].copy_(saved[i]);
    }
    rate.lr(0.1);
    optimizer.state().clear();
    for (int step = 12; step < 12 + kSteps; ++step) world.train(ddp.get(), net, optimizer, step);
    return copies(net.parameters());
  });
}

// And what else hides a difference.

TEST_P(RealPrograms, GradientsThatAreZeroedInPlaceDoNotHideAParameterThatGotNone) {
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < kSteps; ++step) {
      const bool lacks = step == 1 + world.repeat() % 3;
      if (lacks && world.is_alone()) continue;
      if (!lacks) {
        world.train(ddp, net, optimizer, step);
        continue;
      }
      const bool mine = world.repeat() % 4 == 0 || world.is_offender();  // on every rank, or on one
      const std::string error = message_of<StepError>([&] {
        optimizer.zero_grad(/*set_to_none=*/false);
        world.backward(ddp, mine ? net.last->weight.pow(2).sum() : world.loss(net, step));
        optimizer.step();
      });
      EXPECT_THAT(error,
                  AllOf(HasSubstr("no gradient for first.weight"), HasSubstr("find_unused_parameters"), Not(HasSubstr("last.weight"))));
      expect_no_gradients(net);
      world.note(ddp->last_failure());
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RealPrograms, kFewRuns, name_of_runs);
INSTANTIATE_TEST_SUITE_P(Full, RealPrograms, kManyRuns, name_of_runs);

}  // namespace
}  // namespace firkin
