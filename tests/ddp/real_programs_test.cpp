// Programs that people really write, on 2 and 3 ranks: what comes out is what one process computes from the batches of all ranks, and the
// same bits on every rank, or every rank has the same error, which says what to do.
#include "real_programs.h"

#include "../test.h"

namespace firkin {
namespace {

class RealPrograms : public OnRanks {};

void expect_no_gradients(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) EXPECT_FALSE(parameter.value().grad().defined()) << parameter.key();
}

// Two modules of one size on one group, as generator and critic are; one rank's forward of the first throws.
struct Pair {
  explicit Pair(const World& world)
      : first(world.seed()),
        second(world.seed() + 50),
        ddp_first(world.wrap(first, named(world, "generator"))),
        ddp_second(world.wrap(second, named(world, "critic"))),
        optimizer_first(sgd(first)),
        optimizer_second(sgd(second)) {}
  // In every other repeat they have names.
  static DataParallelOptions named(const World& world, const char* name) {
    DataParallelOptions options = world.options();
    if (world.repeat() % 2 == 1) options.name = name;
    return options;
  }
  Tensors parameters() const {
    Tensors all = copies(first.parameters());
    for (const at::Tensor& parameter : copies(second.parameters())) all.push_back(parameter);
    return all;
  }
  Net first, second;
  std::unique_ptr<DataParallel> ddp_first, ddp_second;
  torch::optim::SGD optimizer_first, optimizer_second;
};

// Trains the first module on all ranks but the offender, and the second one on that. Returns what every rank hears.
std::string step_different_modules(World& world, Pair& pair, int step) {
  const auto started = std::chrono::steady_clock::now();
  const std::string heard = loss_of([&] {
    if (!world.is_offender()) world.train(pair.ddp_first.get(), pair.first, pair.optimizer_first, step);  // its forward threw
    world.train(pair.ddp_second.get(), pair.second, pair.optimizer_second, step);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30))
      << "about 5 s are promised, on a machine that is not busy";
  return heard;
}

TEST_P(RealPrograms, RanksThatStepTwoModulesInDifferentOrdersAllHearWhichTwo) {
  expect_the_same_on_every_rank(GetParam().repeats, /*at_once=*/5, [](World& world) {
    Pair pair(world);
    const int straying_step = world.repeat() % 4;
    for (int step = 0; step < straying_step; ++step) {
      world.train(pair.ddp_first.get(), pair.first, pair.optimizer_first, step);
      world.train(pair.ddp_second.get(), pair.second, pair.optimizer_second, step);
    }
    const bool named = world.repeat() % 2 == 1;
    EXPECT_THAT(step_different_modules(world, pair, straying_step),
                AllOf(HasSubstr(named ? "generator" : "module 0"), HasSubstr(named ? "critic" : "module 1")));
    for (const auto& ddp : {pair.ddp_first.get(), pair.ddp_second.get()}) {
      EXPECT_THROW(ddp->abandon_step("goes on"), GroupError) << "the group is lost for both";
    }
    return pair.parameters();  // no optimiser has stepped on what belongs to the other module
  });
}

// A penalty on the gradients.

TEST_P(RealPrograms, ABackwardThatCreatesAGraphFailsTheStepOnEveryRankAndTheNextStepWorks) {
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < kProgramSteps; ++step) {
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
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    const auto penalised = [&net](const at::Tensor& x) {
      const at::Tensor loss = net.loss(x);
      at::Tensor penalty = at::zeros({}, at::kDouble);
      for (const at::Tensor& gradient :
           torch::autograd::grad({loss}, net.parameters(), /*grad_outputs=*/{}, /*retain_graph=*/true, /*create_graph=*/true)) {
        penalty = penalty + gradient.pow(2).sum();
      }
      return loss + 0.5 * penalty;
    };
    for (int step = 0; step < kProgramSteps; ++step) {
      optimizer.zero_grad(world.zeroes_to_none());
      world.backward(ddp, world.mean_loss(step, penalised));
      optimizer.step();
    }
  }));
}

// A backward under no_sync() after the step's own, an auxiliary loss say, and then the optimiser's step. (Who goes back before he steps
// does the same at first: own_steps_test.cpp. So the rank's suspicion makes all compare in the step after the next.)

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
    for (size_t i = 0; i < saved.size(); ++i) net.parameters()[i].detach().copy_(saved[i]);  // back to the checkpoint, and on
    for (int step = offence + 3; step < kProgramSteps; ++step) world.train(ddp.get(), net, optimizer, step);
    return copies(net.parameters());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RealPrograms, kFewRuns, name_of_runs);
INSTANTIATE_TEST_SUITE_P(Full, RealPrograms, kManyRuns, name_of_runs);

}  // namespace
}  // namespace firkin
