// A user's own module and step are tuned with real steps; never how fast anything was.
#include "firkin/tune/tune.h"

#include <filesystem>

#include "../base/temporary_folder.h"
#include "../comm/thread_ranks.h"
#include "../ddp/autograd_functions.h"
#include "../torch.h"
#include "results/results.h"

namespace firkin {
namespace {

// A module that Firkin knows nothing of, and a loop body as one writes it for one process.
struct Own {
  torch::nn::Sequential net{torch::nn::Linear(16, 64), torch::nn::BatchNorm1d(64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                            torch::nn::Linear(64, 3)};
  torch::optim::AdamW optimizer{net->parameters()};
  at::Tensor bank = at::zeros({8, 16});
  int steps = 0;

  void step() {
    ++steps;
    optimizer.zero_grad();
    const at::Tensor x = at::randn({8, 16});
    bank += x;
    torch::nn::functional::cross_entropy(net->forward(x), at::randint(3, {8}, at::kLong)).backward();
    optimizer.step();
  }
};

ModuleTuningOptions quick() {
  ModuleTuningOptions options;
  options.blocks = 4;
  options.profile_steps = 4;
  options.allreduce_seconds = 0.1;
  options.progress = false;
  return options;
}

std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> state;
  for (const at::Tensor& tensor : module.parameters()) state.push_back(tensor.detach().clone());
  for (const at::Tensor& tensor : module.buffers()) state.push_back(tensor.clone());
  return state;
}

TEST(TuneModule, GivesOptionsToTrainWithAndPutsBackTheModuleAndWhatIsNamed) {
  const TemporaryFolder folder;
  const std::filesystem::path out = folder.path / "out";
  run_ranks(2, [&](const ProcessGroup& group) {
    Own own;
    const std::vector<at::Tensor> before = state_of(*own.net);
    ModuleTuningOptions options = quick();
    options.out = out;
    options.name = "own";
    options.also = {own.bank};
    const ModuleTuning tuning = tune(
        *own.net, [&] { own.step(); }, group, options);
    EXPECT_GT(own.steps, 100);
    const std::vector<at::Tensor> after = state_of(*own.net);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
    EXPECT_FALSE(own.bank.any().item<bool>());
    for (const at::Tensor& parameter : own.net->parameters()) EXPECT_FALSE(parameter.grad().defined());

    EXPECT_EQ(tuning.options.cap.cap_bytes, tuning.cap_bytes);
    const auto chosen = [&](const TunedCap& cap) { return cap.cap_bytes == tuning.cap_bytes; };
    EXPECT_EQ(std::ranges::count_if(tuning.curve, chosen), 1);
    EXPECT_GE(tuning.decision.expected_regret, 0);
    EXPECT_EQ(tuning.profile.tensors.names.size(), own.net->parameters().size());
    EXPECT_GT(tuning.profile.bare_backward_s, 0);
    const bool keeps = keeps_default(tuning.decision.outcome);
    EXPECT_THAT(tuning.text, HasSubstr(keeps ? "Keep PyTorch's default" : "a cap of "));

    DataParallel ddp(*own.net, group, tuning.options);
    own.step();
    own.step();
    const auto in_curve = std::ranges::find_if(tuning.curve, chosen);
    EXPECT_EQ(static_cast<int64_t>(ddp.stats().buckets.size()), in_curve->buckets);
  });
  const Results results = read_results(out / "results.json");
  EXPECT_EQ(results.run.model->name, "own");
  EXPECT_EQ(results.run.environment.world_size, 2);
  for (const std::string& file : results.run.files) EXPECT_TRUE(std::filesystem::exists(out / file)) << file;
  EXPECT_EQ(results.run.files.size(), 3);
}

TEST(TuneModule, TheProfileKnowsTheOrderOfBackward) {
  run_ranks(2, [](const ProcessGroup& group) {
    Own own;
    const ModuleProfile found = profile(
        *own.net, [&] { own.step(); }, group, 8);
    check_profile(found.tensors);
    const auto position = [&](const std::string& name) {
      return std::ranges::find(found.tensors.names, name) - found.tensors.names.begin();
    };
    EXPECT_LT(position("4.weight"), position("3.weight"));
    EXPECT_LT(position("3.weight"), position("0.weight"));
    EXPECT_GT(found.tensors.ready_s[0], 0);
  });
}

// What tune() throws, on both ranks.
std::vector<std::string> errors_of(const std::function<void(Own&, const ProcessGroup&)>& body) {
  return results_of(2, [&](const ProcessGroup& group) {
    Own own;
    return message_of<InputError>([&] { body(own, group); });
  });
}

TEST(TuneModule, AStepThatDoesNotGoBackOnceOrLeavesOutAParameterIsEveryRanksError) {
  const auto errors_of_step = [](const std::function<void(Own&, int rank)>& step) {
    return errors_of([&](Own& own, const ProcessGroup& group) {
      profile(
          *own.net, [&] { step(own, group.rank); }, group);
    });
  };
  EXPECT_THAT(errors_of_step([](Own&, int) {}), Each(HasSubstr("rank 0: the training step ran no backward pass")));
  const auto twice = [](Own& own, int) {
    for (int i = 0; i < 2; ++i) own.step();
  };
  EXPECT_THAT(errors_of_step(twice), Each(HasSubstr("rank 0: the training step ran 2 backward passes; expected one")));
  const auto leaves_out = [](Own& own, int rank) { rank == 0 ? own.step() : own.net->parameters()[0].sum().backward(); };
  EXPECT_THAT(errors_of_step(leaves_out), Each(HasSubstr("rank 1: the training step gave 0.bias no gradient")));
}

TEST(TuneModule, ABackwardWithinTheBackwardIsAPartOfIt) {
  run_ranks(2, [](const ProcessGroup& group) {
    Own own;
    Checkpoint::Body body = [&](const at::Tensor& x) { return own.net->forward(x); };
    const auto step = [&] {
      own.optimizer.zero_grad();
      Checkpoint::apply(at::randn({8, 16}).requires_grad_(), &body).sum().backward();
      own.optimizer.step();
    };
    EXPECT_EQ(profile(*own.net, step, group, 4).tensors.names.size(), own.net->parameters().size());
  });
}

TEST(TuneModule, AStepThatThrowsIsItsOwnErrorAndWhatItResizedIsPutBack) {
  run_ranks(2, [](const ProcessGroup& group) {
    Own own;
    const std::vector<at::Tensor> before = state_of(*own.net);
    const auto step = [&] {
      own.step();
      if (own.steps < 3) return;
      for (at::Tensor& buffer : own.net->buffers()) {
        if (buffer.dim() > 0) buffer.resize_({128});
      }
      throw std::domain_error("the step's own error");
    };
    EXPECT_THROW(profile(*own.net, step, group), std::domain_error);
    const std::vector<at::Tensor> after = state_of(*own.net);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
    for (const at::Tensor& parameter : own.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

TEST(TuneModule, OptionsOutOfRangeAndFoldersThatCannotBeAreErrors) {
  ModuleTuningOptions none = quick();
  none.blocks = 0;
  auto errors = errors_of([&](Own& own, const ProcessGroup& group) {
    tune(
        *own.net, [&] { own.step(); }, group, none);
  });
  EXPECT_THAT(errors, Each(HasSubstr("blocks is 0; expected at least 1")));
  ModuleTuningOptions nowhere = quick();
  nowhere.out = "/proc/firkin";
  errors = errors_of([&](Own& own, const ProcessGroup& group) {
    tune(
        *own.net, [&] { own.step(); }, group, nowhere);
  });
  EXPECT_THAT(errors, Each(HasSubstr("/proc/firkin")));
  errors = errors_of([&](Own& own, const ProcessGroup& group) { tune(*own.net, {}, group, quick()); });
  EXPECT_THAT(errors, Each(HasSubstr("no training step")));
}

}  // namespace
}  // namespace firkin
