// The corners that data-parallel libraries have learned the hard way.
#include "../test.h"
#include "autograd_functions.h"
#include "known_gradients.h"
#include "tensors.h"

namespace firkin {
namespace {

TEST(Corners, ATiedWeightIsSentOnceWithBothGradientsAndAFrozenOneIsLeftAlone) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("embedding", at::ones({4}));
    module.add("head", w);
    at::Tensor frozen = module.add("frozen", at::full({4}, 2.0), /*trainable=*/false);
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      synchronise(ddp, ((w * frozen + w) * rank_value(group)).sum());
      EXPECT_TRUE(at::equal(w.grad(), at::full({4}, 3 * kMean)));
      EXPECT_FALSE(frozen.grad().defined());
      EXPECT_EQ(ddp.stats().tensors.size(), 1);
    }
  });
}

TEST(Corners, FindUnusedParametersCountsAnUnusedGradientAsZero) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    options.find_unused_parameters = true;
    Parameters module;
    at::Tensor w = module.add("w", at::ones({3}));
    at::Tensor sometimes = module.add("sometimes", at::ones({3}));
    at::Tensor never = module.add("never", at::ones({3}));
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const bool uses = group.rank == step % 2;
      synchronise(ddp, uses ? (w + sometimes).sum() : w.sum());
      EXPECT_TRUE(at::equal(w.grad(), at::ones({3})));
      EXPECT_TRUE(at::equal(sometimes.grad(), at::full({3}, 0.5)));
      EXPECT_FALSE(never.grad().defined());
    }
  });
}

TEST(Corners, NoSyncAccumulatesAndTheNextBackwardSendsTheSum) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module({5, 2});
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 4; ++step) {
      const bool by_setter = step % 2 == 1;
      module.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {
        std::optional<DataParallel::NoSync> scope;
        by_setter ? void(ddp.set_gradient_synchronization(false)) : void(scope.emplace(ddp));
        module.loss(rank_value(group)).backward();
        module.expect_gradients((micro + 1) * rank_value(group));
      }
      ddp.set_gradient_synchronization(true);
      synchronise(ddp, module.loss(rank_value(group)));
      module.expect_gradients(3 * kMean);
    }
    EXPECT_EQ(ddp.stats().steps, 4);
  });
}

TEST(Corners, GradientsMayBeZeroedInPlaceOrReplaced) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module({5, 2});
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 4; ++step) {
      module.zero_grad(/*set_to_none=*/step == 2);
      if (step == 3) module.all[0].mutable_grad() = at::zeros({5});  // a tensor of the user's own
      synchronise(ddp, module.loss(rank_value(group)));
      module.expect_gradients(kMean);
    }
  });
}

TEST(Corners, WithoutZeroGradTheNewMeanIsAddedToTheOldAndToWhatCameUnderNoSync) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module({5, 2});
    DataParallel ddp(module, group, options);
    for (int step = 1; step <= 3; ++step) {
      synchronise(ddp, module.loss(rank_value(group)));
      module.expect_gradients(step * kMean);
    }
    {
      const auto scope = ddp.no_sync();
      module.loss(rank_value(group)).backward();
    }
    module.expect_gradients(3 * kMean + rank_value(group));
    synchronise(ddp, module.loss(rank_value(group)));
    module.expect_gradients(5 * kMean);
  });
}

TEST(Corners, DtypesNeverShareABucket) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    options.cap.cap_bytes = 1 << 20;
    Parameters module;
    for (int i = 0; i < 9; ++i) {
      const at::ScalarType dtype = std::array{at::kFloat, at::kBFloat16, at::kDouble}[static_cast<size_t>(i) % 3];
      module.add(fmt::format("p{}", i), at::ones({i + 1}, dtype));
    }
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      synchronise(ddp, module.loss(rank_value(group)));
      module.expect_gradients(kMean);
      for (const at::Tensor& p : module.all) EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
    }
    const bool groups = options.strategy.name == "bucketed" || options.strategy.name == "flat";
    EXPECT_EQ(ddp.plan().buckets.size(), groups ? 3 : 9);
  });
}

TEST(Corners, TensorsThatAreEmptyOversizedOrNotDenseArrive) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    module.add("strided", at::ones({4, 6}).slice(1, 0, 6, 2).detach());
    module.add("transposed", at::ones({4, 3}).t().detach());
    module.add("empty", at::ones({0, 3}));
    module.add("large", at::ones({1000}));
    module.add("small", at::ones({1}));
    Parameters single({2});
    DataParallel ddp(module, group, options);
    DataParallel ddp_of_single(single, group, options);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      single.zero_grad();
      synchronise(ddp, module.loss(rank_value(group)));
      synchronise(ddp_of_single, single.loss(rank_value(group)));
      module.expect_gradients(kMean);
      single.expect_gradients(kMean);
    }
  });
}

TEST(Corners, ASparseGradientIsRefused) {
  run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    DataParallel ddp(*embedding, group, with_strategy("flat"));
    EXPECT_THAT([&] { embedding->forward(at::arange(3)).sum().backward(); },
                ThrowsMessage<InputError>(HasSubstr("weight has a sparse gradient")));
  });
}

// A rank's training, a part of which is checkpointed: body(x) is x * a.
struct CheckpointedTraining {
  CheckpointedTraining(const ProcessGroup& group, const DataParallelOptions& options)
      : value(rank_value(group)), ddp(module, group, options) {}
  // Of the rank's loss, in which `a` is used outside as well.
  void backward(bool is_checkpointed = true) {
    module.zero_grad();
    const at::Tensor b = module.b * 1.0;
    ((is_checkpointed ? Checkpoint::apply(b, &body) : body(b)) + module.a).mul(value).sum().backward();
  }
  void expect_gradients(double of_a, double of_b) const {
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, of_a))) << module.a.grad();
    EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, of_b))) << module.b.grad();
  }
  double value;
  TwoParameters module;
  DataParallel ddp;
  Checkpoint::Body body = [this](const at::Tensor& x) { return x * module.a; };
};

void on_two_ranks_with_checkpoints(const std::function<void(CheckpointedTraining&)>& body, bool finds_unused = false) {
  run_ranks(2, [&](const ProcessGroup& group) {
    DataParallelOptions options = with_strategy("overlap");
    options.find_unused_parameters = finds_unused;
    CheckpointedTraining training(group, options);
    body(training);
  });
}

TEST(CheckpointedBackward, AParameterUsedInsideAndOutsideIsSentWhenBothGradientsAreThere) {
  on_two_ranks_with_checkpoints([](CheckpointedTraining& training) {
    for (int step = 0; step < 4; ++step) {
      training.backward();
      training.expect_gradients(2 * kMean, kMean);
    }
    EXPECT_EQ(training.ddp.stats().steps, 4);
  });
}

TEST(CheckpointedBackward, AStepEndsWithTheOuterBackwardWhenEveryParameterLiesInside) {
  on_two_ranks_with_checkpoints([](CheckpointedTraining& training) {
    Checkpoint::Body second = [&](const at::Tensor& x) { return x + training.module.b; };
    for (int step = 0; step < 3; ++step) {
      training.module.zero_grad();
      const at::Tensor x = torch::ones({4}, torch::requires_grad());
      Checkpoint::apply(Checkpoint::apply(x * training.value, &training.body), &second).sum().backward();
      EXPECT_EQ(training.ddp.stats().steps, step + 1);
      training.expect_gradients(kMean, 1);
    }
  });
}

TEST(CheckpointedBackward, AnOuterBackwardThatThrowsAfterAnInnerOneEndedWellIsAFailedStep) {
  on_two_ranks_with_checkpoints([](CheckpointedTraining& training) {
    for (int step = 0; step < 4; ++step) {
      training.module.zero_grad();
      at::Tensor hidden = training.module.b * training.value;
      if (step % 2 == 0 && training.value == 2) hidden = ThrowInBackward::apply(hidden, "the outer one broke");
      const auto backward = [&] { Checkpoint::apply(hidden, &training.body).sum().backward(); };
      if (step % 2 == 0) {
        EXPECT_THAT(error_of(backward), HasSubstr("the outer one broke"));
        EXPECT_EQ(training.ddp.last_failure(), (StepFailure{1, step, "the outer one broke"}));
        training.module.expect_no_gradients();
      } else {
        backward();
        training.expect_gradients(kMean, kMean);
      }
    }
  });
}

TEST(CheckpointedBackward, MoreGradientsThanInTheStepsBeforeAreRefusedOnceAndExpectedAfterwards) {
  on_two_ranks_with_checkpoints([](CheckpointedTraining& training) {
    training.backward(/*is_checkpointed=*/false);
    EXPECT_THAT(message_of<RuntimeError>([&] { training.backward(); }), HasSubstr("a received more gradients"));
    EXPECT_TRUE(training.ddp.last_failure());
    for (const bool is_checkpointed : {true, false}) {  // and fewer are no trouble
      training.backward(is_checkpointed);
      training.expect_gradients(2 * kMean, kMean);
    }
  });
}

TEST(CheckpointedBackward, AParameterThatTheFirstStepLeftOutMayGetSeveralGradientsLater) {
  const auto program = [](CheckpointedTraining& training) {
    (training.module.b * training.value).sum().backward();
    EXPECT_TRUE(at::equal(training.module.b.grad(), at::full({4}, kMean)));
    for (int step = 1; step < 4; ++step) {
      training.backward();
      training.expect_gradients(2 * kMean, kMean);
    }
  };
  on_two_ranks_with_checkpoints(program, /*finds_unused=*/true);
}

}  // namespace
}  // namespace firkin
