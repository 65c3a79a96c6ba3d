// The audit: what differs between ranks is found, whatever made it differ, and what may differ is not.
#include "known_gradients.h"
#include "programs.h"

namespace firkin {
namespace {

// A rank's training of three layers, of which the second is frozen.
struct AuditedTraining {
  AuditedTraining(const ProcessGroup& process_group, DataParallelOptions options, int64_t audit_every = 100) : group(process_group) {
    for (at::Tensor& parameter : net->layers[1]->parameters()) parameter.set_requires_grad(false);
    options.audit_every = audit_every;
    ddp.emplace(*net, group, options);
  }
  void backward(int step) {
    net->zero_grad();
    synchronise(*ddp, net->forward(batch_of(step, group.rank, at::kDouble)).pow(2).mean());
  }
  void train(int step) {
    backward(step);
    sgd.step();
  }
  std::string audit() {
    return message_of<AuditError>([&] { ddp->audit(); });
  }

  const ProcessGroup& group;
  LayeredNet net{at::TensorOptions(at::kDouble)};
  std::optional<DataParallel> ddp;
  torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
};

// Every rank has said the same.
void expect_one_text(const ProcessGroup& group, const std::string& text) {
  const auto hash = static_cast<double>(std::hash<std::string>()(text) % (1 << 30));
  for (const std::vector<double>& of_rank : all_gather(group, {hash})) EXPECT_THAT(of_rank, ElementsAre(hash)) << text;
}

void set_element(const at::Tensor& tensor, int64_t index, double value) {
  tensor.data_ptr<double>()[index] = value;
}

using Layers = std::vector<Layer>;

// What one rank does to its copy, and the parameter that every rank then hears of.
struct Damage {
  const char* what;
  std::function<void(Layers& layers)> make;
  const char* parameter;
};

const Damage kDamages[] = {
    {"one bit", [](Layers& layers) { set_element(layers[2]->bias, 1, std::nextafter(layers[2]->bias[1].item<double>(), 1e9)); },
     "third.bias"},
    {"two values that have changed places",
     [](Layers& layers) {
       const double first = layers[0]->weight[0][0].item<double>();
       set_element(layers[0]->weight, 0, layers[0]->weight[0][1].item<double>());
       set_element(layers[0]->weight, 1, first);
     },
     "first.weight"},
    {"two changes whose sum is zero",
     [](Layers& layers) {
       layers[0]->weight.data()[0][0] += 0.5;
       layers[0]->weight.data()[5][8] -= 0.5;
     },
     "first.weight"},
    {"a frozen parameter", [](Layers& layers) { set_element(layers[1]->weight, 62, 0); }, "second.weight"},
    {"a NaN", [](Layers& layers) { set_element(layers[2]->bias, 0, std::numeric_limits<double>::quiet_NaN()); }, "third.bias"},
    {"several parameters, of which the first is named",
     [](Layers& layers) {
       layers[2]->weight.data().zero_();
       layers[1]->bias.data().zero_();
     },
     "second.bias"},
};

TEST(Audits, FindWhatOneRankHasOtherwise) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](const ProcessGroup& group, const DataParallelOptions& options) {
      for (int offender = 0; const Damage& damage : kDamages) {
        SCOPED_TRACE(damage.what);
        AuditedTraining training(group, options);
        for (int step = 0; step < 2; ++step) training.train(step);
        EXPECT_EQ(training.audit(), "");
        if (group.rank == offender) damage.make(training.net->layers);
        const std::string error = training.audit();
        EXPECT_THAT(error, AllOf(HasSubstr(damage.parameter), ContainsRegex(fmt::format("ranks? 0 .*{}", std::max(offender, 1)))));
        expect_one_text(group, error);
        offender = (offender + 1) % group.size;
      }
    });
  }
}

TEST(Audits, NansThatAreTheSameOnAllRanksAreNoDifference) {
  on_ranks(2, [](const ProcessGroup& group, const DataParallelOptions& options) {
    AuditedTraining training(group, options);
    training.net->layers[0]->weight.data().fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(training.audit(), "");
  });
}

TEST(Audits, BuffersOfBatchNormAreNoDifferenceWhetherTheyAreBroadcastOrNot) {
  on_ranks(2, [](const ProcessGroup& group, DataParallelOptions options) {
    options.audit_every = 1;
    for (const bool broadcasts : {true, false}) {
      options.broadcast_buffers = broadcasts;
      torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
      net->to(at::kDouble);
      DataParallel ddp(*net, group, options);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        synchronise(ddp, net->forward(batch_of(step, group.rank, at::kDouble)).pow(2).mean());
        optimizer.step();
      }
      EXPECT_NO_THROW(ddp.audit());
    }
  });
}

// Trains while a parameter of the last rank moves by itself before the steps from `first` to `last`. Returns the step in which every rank
// heard of it, at most `steps`, and what it heard.
std::pair<int, std::string> first_audit(AuditedTraining training, int first, int last, int steps) {
  for (int step = 0; step < steps; ++step) {
    if (training.group.rank + 1 == training.group.size && first <= step && step <= last) training.net->layers[0]->bias.data()[0] += 1e-3;
    const std::string error = message_of<AuditError>([&] { training.train(step); });
    if (!error.empty()) return {step, error};
  }
  return {steps, ""};
}

TEST(Audits, TakePlaceEveryHundredStepsUnlessToldOtherwise) {
  run_ranks(2, [](const ProcessGroup& group) {
    const int by_default = first_audit({group, {}, DataParallelOptions().audit_every}, 1, 100, 101).first;
    EXPECT_THAT(by_default, AllOf(Ge(98), Le(100)));  // the hundredth step, however steps are counted
    EXPECT_LE(first_audit({group, {}, 1}, 1, 100, 10).first, 1);
    EXPECT_EQ(first_audit({group, {}, 0}, 1, 110, 110).first, 110);
  });
}

TEST(Audits, SaySinceWhichStepAllWasStillEqual) {
  on_ranks(3, [](const ProcessGroup& group, const DataParallelOptions& options) {
    const auto [step, error] = first_audit({group, options, 5}, 12, 12, 20);
    EXPECT_GE(step, 12);
    EXPECT_THAT(error, AllOf(HasSubstr("first.bias"), ContainsRegex("equal.* step (8|9|10|11|12)"))) << "audits are five steps apart";
    expect_one_text(group, error);
  });
}

// Of a checkpoint that was read halfway, say.
TEST(Audits, CompareTheOptimisersStateWhereItIsGivenAndThatOfAnOverlappedOneAlways) {
  on_ranks(3, [](const ProcessGroup& group, const DataParallelOptions& options) {
    for (const bool overlaps : {false, true}) {
      AuditedTraining training(group, options, 0);
      torch::optim::AdamW optimizer(training.net->parameters(), 1e-3);
      std::optional<OverlappedOptimizer> overlapped;
      if (overlaps) overlapped.emplace(*training.ddp, optimizer);
      for (int step = 0; step < 3; ++step) {
        training.backward(step);
        overlaps ? overlapped->step() : void(optimizer.step());
      }
      EXPECT_EQ(training.audit(), "");
      auto& state = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(training.net->layers[2]->bias.unsafeGetTensorImpl()));
      if (group.rank == 1) state.exp_avg_sq().mul_(2);
      if (!overlaps) {
        EXPECT_EQ(training.audit(), "");
        training.ddp->audit_optimizer(optimizer);
      }
      const std::string error = training.audit();
      EXPECT_THAT(error, HasSubstr("third.bias"));
      expect_one_text(group, error);
    }
  });
}

TEST(Audits, WaitForParametersThatAreStillOnTheirWay) {
  const auto often = [](DataParallelOptions& options) { options.audit_every = 2; };
  const auto program = [](Place& place) {
    for (int step = 0; step < 9; ++step) {
      place.train(step);
      if (step % 4 == 3) place.training.ddp.audit();
    }
  };
  for (const int ranks : {2, 3}) run_late("ordered", program, {.ranks = ranks, .optimizer = "AdamW", .set = often});
}

TEST(Audits, RanksWithoutDataInAJoinSectionTakePartInThem) {
  on_ranks(3, [](const ProcessGroup& group, const DataParallelOptions& options) {
    AuditedTraining training(group, options, 1);
    for (int step = 0; step < 1 + 2 * group.rank; ++step) training.train(step);
    training.ddp->join([&] { training.sgd.step(); });
    EXPECT_EQ(training.audit(), "");
  });
}

TEST(Audits, CompareParametersOfEveryDtypeAndShape) {
  run_ranks(2, [](const ProcessGroup& group) {
    struct Module : torch::nn::Module {
      at::Tensor half = register_parameter("half", at::ones({3}, at::kBFloat16));
      at::Tensor empty = register_parameter("empty", at::ones({0, 3}));
      at::Tensor scalar = register_parameter("scalar", at::ones({}));
      at::Tensor transposed = register_parameter("transposed", at::arange(12, at::kFloat).view({4, 3}).t().detach());
      at::Tensor count = register_parameter("count", at::arange(3), /*requires_grad=*/false);
    } module;
    DataParallel ddp(module, group);
    EXPECT_NO_THROW(ddp.audit());
    for (const auto& parameter : module.named_parameters()) {
      if (parameter.value().numel() == 0) continue;
      const at::Tensor saved = parameter.value().detach().clone();
      if (group.rank == 1) parameter.value().detach().add_(1);
      EXPECT_THAT(message_of<AuditError>([&] { ddp.audit(); }), HasSubstr(parameter.key()));
      parameter.value().detach().copy_(saved);
    }
  });
}

}  // namespace
}  // namespace firkin
