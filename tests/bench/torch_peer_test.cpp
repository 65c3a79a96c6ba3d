// c10d::Reducer as experiments have it, and that our buckets compute what it computes.
#include "bench/torch_peer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "../ddp/tensors.h"
#include "../ddp/test_models.h"
#include "bench/step_bench.h"
#include "firkin/base/error.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::ElementsAre;

constexpr int kSteps = 5;

struct Module : torch::nn::Module {
  at::Tensor a = register_parameter("a", at::ones({4}));
  at::Tensor b = register_parameter("b", at::ones({4}));
  at::Tensor c = register_parameter("c", at::ones({4}));
  at::Tensor seen = register_buffer("seen", at::zeros({2}));

  // The rank's gradients are its rank and one; the mean over two ranks is 1.5.
  void backward(const ProcessGroup& group) const { ((a + b + c) * (1.0 + group.rank)).sum().backward(); }
  void forget_gradients() const {
    for (const at::Tensor& parameter : parameters()) parameter.mutable_grad().reset();
  }
};

// On two ranks, with gradients as views of the Reducer's buckets and as copies, 16 bytes a bucket.
void on_two_ranks(const std::function<void(const ProcessGroup&, const TorchPeerOptions&)>& body) {
  for (const bool views : {true, false}) {
    SCOPED_TRACE(views);
    run_ranks(2, [&](const ProcessGroup& group) { body(group, {.cap = {.cap_bytes = 16}, .gradient_as_bucket_view = views}); });
  }
}

TEST(TorchPeer, GradientsAreTheMeanOverTheRanksWhenBackwardReturns) {
  on_two_ranks([](const ProcessGroup& group, const TorchPeerOptions& options) {
    Module module;
    TorchPeer peer(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.forget_gradients();
      peer.prepare();
      module.backward(group);
      for (const at::Tensor& p : module.parameters()) EXPECT_TRUE(at::equal(p.grad(), at::full({4}, 1.5)));
      peer.rebuild_buckets();
    }
  });
}

TEST(TorchPeer, ABackwardThatIsNotPreparedStaysOnItsRank) {
  on_two_ranks([](const ProcessGroup& group, const TorchPeerOptions& options) {
    Module module;
    TorchPeer peer(module, group, options);
    for (int micro = 0; micro < 3; ++micro) {
      if (micro == 2) peer.prepare();
      module.backward(group);
      if (micro < 2) {
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, (micro + 1) * (1.0 + group.rank))));
      }
    }
    for (const at::Tensor& p : module.parameters()) EXPECT_TRUE(at::equal(p.grad(), at::full({4}, 4.5)));
  });
}

TEST(TorchPeer, RanksBeginWithRank0sParametersAndItsBuffersComeBeforeEveryStep) {
  on_two_ranks([](const ProcessGroup& group, const TorchPeerOptions& options) {
    Module module;
    {
      const at::NoGradGuard no_grad;
      module.b.fill_(5.0 + group.rank);
      module.seen.fill_(7.0 + group.rank);
    }
    TorchPeer peer(module, group, options);
    EXPECT_TRUE(at::equal(module.b, at::full({4}, 5.0)));
    EXPECT_TRUE(at::equal(module.seen, at::full({2}, 7.0)));
    module.seen.fill_(9.0 + group.rank);
    peer.prepare();
    EXPECT_TRUE(at::equal(module.seen, at::full({2}, 9.0)));
    module.backward(group);
  });
}

TEST(TorchPeer, BucketsAreFilledInReadyOrder) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    TorchPeer peer(module, group, {.cap = {.cap_bytes = 32, .first_cap_bytes = 16}});
    EXPECT_THAT(peer.bucket_bytes(), ElementsAre(16, 32));
    const TorchPeer other(module, group, {.cap = {.cap_bytes = 32}, .ready_order = {1, 0, 2}});
    EXPECT_THAT(other.bucket_bytes(), ElementsAre(32, 16));
  });
}

TEST(TorchPeer, AModuleWithoutParametersIsRefused) {
  run_ranks(1, [](const ProcessGroup& group) {
    const torch::nn::Tanh nothing;
    EXPECT_THROW(TorchPeer(*nothing, group, {}), InputError);
  });
}

// What a run leaves behind on one rank.
struct Trained {
  Tensors first_gradients;  // at the same parameters in every run
  Tensors parameters;
};

struct RunSetup {
  std::string model;
  bool adamw = false;
  at::ScalarType dtype = at::kFloat;
};

Trained train_on_ranks(int world_size, const char* strategy, const RunSetup& setup) {
  Trained of_rank_0;
  run_ranks(world_size, [&](const ProcessGroup& group) {
    const TestModel model = make_test_model(setup.model, setup.dtype);
    const int64_t share = kGlobalBatch / group.size;
    Workload workload;
    workload.module = model.module;
    workload.parameters = model.module->parameters();
    workload.loss = [&](int64_t step) { return model.loss(static_cast<int>(step), group.rank * share, share); };
    if (setup.adamw) {
      workload.optimizer = std::make_shared<torch::optim::AdamW>(workload.parameters, torch::optim::AdamWOptions(1e-3));
    } else {
      workload.optimizer = std::make_shared<torch::optim::SGD>(workload.parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    }
    DataParallelOptions options;
    options.strategy = find_strategy(strategy);
    options.cap.cap_bytes = 1500;
    StepRunner runner(group, workload, options);
    Trained trained;
    for (int step = 0; step < kSteps; ++step) {
      runner.step(step);
      if (step > 0) continue;
      for (const at::Tensor& p : workload.parameters) {
        if (p.requires_grad()) trained.first_gradients.push_back(p.grad().clone());
      }
    }
    trained.parameters = copies(workload.parameters);
    if (group.rank == 0) of_rank_0 = trained;
  });
  return of_rank_0;
}

// The largest difference of any tensor, relative to its largest entry.
double relative_difference(const Tensors& a, const Tensors& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double scale = std::max(b[i].abs().max().item<double>(), std::numeric_limits<double>::min());
    worst = std::max(worst, (a[i] - b[i]).abs().max().item<double>() / scale);
  }
  return worst;
}

// Up to two ranks, where a sum has one order only, to the last bit.
TEST(TorchPeer, OurBucketsComputeWhatItComputes) {
  for (const NamedTestModel& model : kTestModels) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      for (const bool adamw : {false, true}) {
        for (const int world_size : {1, 2, 3, 4}) {
          SCOPED_TRACE(fmt::format("{} {} {} on {}", model.name, c10::toString(dtype), adamw ? "AdamW" : "SGD", world_size));
          const RunSetup setup{.model = model.name, .adamw = adamw, .dtype = dtype};
          const Trained ours = train_on_ranks(world_size, "bucketed", setup);
          const Trained theirs = train_on_ranks(world_size, "torch", setup);
          ASSERT_EQ(ours.first_gradients.size(), theirs.first_gradients.size());
          EXPECT_LE(relative_difference(ours.first_gradients, theirs.first_gradients), 1e-6);
          if (world_size <= 2) {
            EXPECT_TRUE(same_bits(ours.parameters, theirs.parameters));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace firkin
