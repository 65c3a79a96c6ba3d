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
    EXPECT_THAT([&] { embedding->forward(at::arange(3)).sum().backward(); }, ThrowsMessage<InputError>(HasSubstr("sparse")));
  });
}

TEST(CheckpointedBackward, AParameterUsedInsideAndOutsideIsSentWhenBothGradientsAreThere) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const at::Tensor inside = Checkpoint::apply(module.b * 1.0, &body);
      ((inside + module.a) * rank_value(group)).sum().backward();
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
      EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, kMean)));
    }
    EXPECT_EQ(ddp.stats().steps, 4);
  });
}

TEST(CheckpointedBackward, AStepEndsWithTheOuterBackwardWhenEveryParameterLiesInside) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body first = [&module](const at::Tensor& x) { return x * module.a; };
    Checkpoint::Body second = [&module](const at::Tensor& x) { return x + module.b; };
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      const at::Tensor x = torch::ones({4}, torch::requires_grad());
      const at::Tensor hidden = Checkpoint::apply(x * rank_value(group), &first);
      Checkpoint::apply(hidden, &second).sum().backward();
      EXPECT_EQ(ddp.stats().steps, step + 1);
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, kMean)));
      EXPECT_TRUE(at::equal(module.b.grad(), at::ones({4})));
    }
  });
}

TEST(CheckpointedBackward, AnOuterBackwardThatThrowsAfterAnInnerOneEndedWellIsAFailedStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      at::Tensor hidden = module.b * rank_value(group);
      if (step % 2 == 0 && group.rank == 1) hidden = ThrowInBackward::apply(hidden, "the outer one broke");
      const auto backward = [&] { Checkpoint::apply(hidden, &body).sum().backward(); };
      if (step % 2 == 0) {
        EXPECT_THAT(backward, ThrowsMessage<std::exception>(HasSubstr("the outer one broke")));
        ASSERT_TRUE(ddp.last_failure().has_value());
        EXPECT_EQ(ddp.last_failure()->rank, 1);
        EXPECT_EQ(ddp.last_failure()->reason, "the outer one broke");
        EXPECT_FALSE(module.a.grad().defined());
      } else {
        backward();
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, kMean)));
        EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, kMean)));
      }
    }
  });
}

TEST(CheckpointedBackward, MoreGradientsThanInTheStepsBeforeAreRefusedOnceAndExpectedAfterwards) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    const auto step = [&](bool checkpointed) {
      module.zero_grad();
      const at::Tensor inside = checkpointed ? Checkpoint::apply(module.b * 1.0, &body) : body(module.b * 1.0);
      ((inside + module.a) * rank_value(group)).sum().backward();
    };
    step(false);
    EXPECT_THAT([&] { step(true); }, ThrowsMessage<RuntimeError>(HasSubstr("a received more gradients")));
    ASSERT_TRUE(ddp.last_failure().has_value());
    step(true);
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
    step(false);  // and fewer are no trouble
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
  });
}

TEST(CheckpointedBackward, AParameterThatTheFirstStepLeftOutMayGetSeveralGradientsLater) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallelOptions options = with_strategy("overlap");
    options.find_unused_parameters = true;
    DataParallel ddp(module, group, options);
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const at::Tensor b = module.b * 1.0;
      ((step == 0 ? b : Checkpoint::apply(b, &body) + module.a) * rank_value(group)).sum().backward();
      EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, kMean)));
      if (step > 0) {
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
      }
    }
  });
}

}  // namespace
}  // namespace firkin
