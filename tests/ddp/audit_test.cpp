// The audit: what differs between ranks is found, whatever made it differ, and what may differ is not.
#include "real_programs.h"

#include "../test.h"
#include "programs.h"

namespace firkin {
namespace {

class Audits : public OnRanks {};

void set_element(at::Tensor& tensor, int64_t index, double value) {
  tensor.data_ptr<double>()[index] = value;
}

// What the offender does to its copy, and the parameter that every rank then hears of.
struct Damage {
  const char* what;
  std::function<void(Net&)> make;
  const char* parameter;
};

const std::vector<Damage> kDamages = {
    {"one bit", [](Net& net) { set_element(net.last->bias, 1, std::nextafter(net.last->bias[1].item<double>(), 1e9)); }, "last.bias"},
    {"two values that have changed places",
     [](Net& net) {
       const double first = net.first->weight[0][0].item<double>();
       set_element(net.first->weight, 0, net.first->weight[0][1].item<double>());
       set_element(net.first->weight, 1, first);
     },
     "first.weight"},
    {"two changes whose sum is zero",
     [](Net& net) {
       net.first->weight.data()[0][0] += 0.5;
       net.first->weight.data()[6][4] -= 0.5;
     },
     "first.weight"},
    {"a frozen parameter", [](Net& net) { set_element(net.middle->weight, 48, 0); }, "middle.weight"},
    {"a NaN", [](Net& net) { set_element(net.last->bias, 0, std::numeric_limits<double>::quiet_NaN()); }, "last.bias"},
    {"several parameters, of which the first is named",
     [](Net& net) {
       net.last->weight.data().zero_();
       net.middle->bias.data().zero_();
     },
     "middle.bias"},
};

TEST_P(Audits, FindsWhatOneRankHasOtherwise) {
  expect_the_same_on_every_rank(3, [](World& world) {
    for (const Damage& damage : kDamages) {
      SCOPED_TRACE(damage.what);
      Net net(world.seed());
      set_trainable(*net.middle, false);
      const auto ddp = world.wrap(net);
      torch::optim::SGD optimizer = sgd(net);
      for (int step = 0; step < 2; ++step) world.train(ddp.get(), net, optimizer, step);
      ddp->audit();
      if (world.is_offender()) damage.make(net);
      const std::string error = message_of<AuditError>([&] { ddp->audit(); });
      const int other = std::max(world.offender(), 1);
      EXPECT_THAT(error, AllOf(HasSubstr(damage.parameter), ContainsRegex(fmt::format("ranks? 0 .*{}", other))));
      world.note(error);
    }
    return Tensors{at::zeros({1})};
  });
}

TEST_P(Audits, NansThatAreTheSameOnAllRanksAreNoDifference) {
  expect_the_same_on_every_rank(3, [](World& world) {
    Net net(world.seed());
    const auto ddp = world.wrap(net);
    net.first->weight.data().fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_THAT(error_of([&] { ddp->audit(); }), IsEmpty());
    return copies(net.middle->parameters());
  });
}

TEST_P(Audits, BuffersOfBatchNormAreNoDifferenceWhetherTheyAreBroadcastOrNot) {
  for (const bool broadcasts : {true, false}) {
    SCOPED_TRACE(broadcasts);
    expect_the_same_on_every_rank(3, [broadcasts](World& world) {
      torch::nn::Sequential net(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
      net->to(at::kDouble);
      DataParallelOptions options = world.options();
      options.audit_every = 1;
      options.broadcast_buffers = broadcasts;
      const auto ddp = world.wrap(*net, options);
      torch::optim::SGD optimizer = sgd(*net);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        world.backward(ddp.get(), world.mean_loss(step, [&](const at::Tensor& x) { return net->forward(x).pow(2).mean(); }));
        optimizer.step();
      }
      EXPECT_THAT(error_of([&] { ddp->audit(); }), IsEmpty());
      return copies(net->parameters());
    });
  }
}

// Parameters of one rank move by themselves, after the first step. Returns the step in which every rank heard of it, at most `steps`.
int first_audited_step(World& world, DataParallelOptions options, int steps) {
  Net net(world.seed());
  const auto ddp = world.wrap(net, options);
  torch::optim::SGD optimizer = sgd(net);
  for (int step = 0; step < steps; ++step) {
    if (step > 0 && world.is_offender()) net.first->bias.data()[0] += 1e-3;
    const std::string error = message_of<AuditError>([&] { world.train(ddp.get(), net, optimizer, step); });
    if (!error.empty()) return step;
  }
  return steps;
}

TEST_P(Audits, TakesPlaceEveryHundredStepsUnlessToldOtherwise) {
  expect_the_same_on_every_rank(1, [](World& world) {
    const int step = first_audited_step(world, {}, 101);
    EXPECT_LE(step, 100);
    EXPECT_GE(step, 98);  // the hundredth step, however steps are counted
    world.note(std::to_string(step));
    DataParallelOptions options = world.options();
    options.audit_every = 1;
    EXPECT_LE(first_audited_step(world, options, 10), 1);
    options.audit_every = 0;
    EXPECT_EQ(first_audited_step(world, options, 110), 110);
    return Tensors{at::zeros({1})};
  });
}

TEST_P(Audits, SaysSinceWhichStepAllWasStillEqual) {
  expect_the_same_on_every_rank(5, [](World& world) {
    Net net(world.seed());
    DataParallelOptions options = world.options();
    options.audit_every = 5;
    const auto ddp = world.wrap(net, options);
    torch::optim::SGD optimizer = sgd(net);
    std::string error;
    int step = 0;
    for (; error.empty() && step < 20; ++step) {
      if (world.is_offender() && step == 12) net.first->bias.data()[0] += 1e-3;
      error = message_of<AuditError>([&] { world.train(ddp.get(), net, optimizer, step); });
    }
    EXPECT_GT(step, 12);
    EXPECT_THAT(error, AllOf(HasSubstr("first.bias"), ContainsRegex("equal.* step (8|9|10|11|12)"))) << "audits are five steps apart";
    world.note(error);
    return copies(net.last->parameters());
  });
}

// Of a checkpoint that was read halfway, say.
TEST_P(Audits, ComparesTheOptimisersStateWhereItIsGivenAndThatOfAnOverlappedOneAlways) {
  expect_the_same_on_every_rank(3, [](World& world) {
    for (const bool overlaps : {false, true}) {
      Net net(world.seed());
      torch::optim::AdamW optimizer(net.parameters(), 1e-3);
      DataParallelOptions options = world.options();
      options.audit_every = 0;
      const auto ddp = world.wrap(net, options);
      std::optional<OverlappedOptimizer> overlapped;
      if (overlaps) overlapped.emplace(*ddp, optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        world.backward(ddp.get(), world.loss(net, step));
        overlaps ? overlapped->step() : void(optimizer.step());
      }
      ddp->drain();
      EXPECT_THAT(error_of([&] { ddp->audit(); }), IsEmpty());
      auto& state = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(net.middle->bias.unsafeGetTensorImpl()));
      if (world.is_offender()) state.exp_avg_sq().mul_(2);
      if (!overlaps) {
        EXPECT_THAT(error_of([&] { ddp->audit(); }), IsEmpty());
        ddp->audit_optimizer(optimizer);
      }
      const std::string error = message_of<AuditError>([&] { ddp->audit(); });
      EXPECT_THAT(error, HasSubstr("middle.bias"));
      world.note(error);
    }
    return Tensors{at::zeros({1})};
  });
}

TEST_P(Audits, WaitsForParametersThatAreStillOnTheirWay) {
  const auto often = [](DataParallelOptions& options) { options.audit_every = 2; };
  const auto program = [](Place& place) {
    for (int step = 0; step < 9; ++step) {
      place.train(step);
      if (step % 4 == 3) {
        EXPECT_THAT(error_of([&] { place.training.ddp.audit(); }), IsEmpty());
      }
    }
  };
  run_late("ordered", program, {.ranks = GetParam().ranks, .optimizer = "AdamW", .set = often});
}

TEST_P(Audits, RanksWithoutDataInAJoinSectionTakePartInIt) {
  expect_the_same_on_every_rank(4, [](World& world) {
    Net net(world.seed());
    DataParallelOptions options = world.options();
    options.audit_every = 1;
    const auto ddp = world.wrap(net, options);
    torch::optim::SGD optimizer = sgd(net);
    for (int step = 0; step < 1 + 2 * world.rank(); ++step) world.train(ddp.get(), net, optimizer, step);
    ddp->join([&] { optimizer.step(); });
    EXPECT_THAT(error_of([&] { ddp->audit(); }), IsEmpty());
    return copies(net.parameters());
  });
}

TEST_P(Audits, ParametersOfEveryDtypeAndShapeAreCompared) {
  expect_the_same_on_every_rank(2, [](World& world) {
    struct Module : torch::nn::Module {
      at::Tensor half = register_parameter("half", at::ones({3}, at::kBFloat16));
      at::Tensor empty = register_parameter("empty", at::ones({0, 3}));
      at::Tensor scalar = register_parameter("scalar", at::ones({}));
      at::Tensor transposed = register_parameter("transposed", at::arange(12, at::kFloat).view({4, 3}).t().detach());
      at::Tensor count = register_parameter("count", at::arange(3), /*requires_grad=*/false);
    } module;
    const auto ddp = world.wrap(module, {});
    EXPECT_THAT(error_of([&] { ddp->audit(); }), IsEmpty());
    for (const auto& parameter : module.named_parameters()) {
      if (parameter.value().numel() == 0) continue;
      const at::Tensor saved = parameter.value().detach().clone();
      if (world.is_offender()) parameter.value().detach().add_(1);
      EXPECT_THAT(message_of<AuditError>([&] { ddp->audit(); }), HasSubstr(parameter.key()));
      parameter.value().detach().copy_(saved);
    }
    return copies(module.parameters());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Audits, kFewRuns, name_of_runs);

}  // namespace
}  // namespace firkin
