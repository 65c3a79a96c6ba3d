// The corners that data-parallel libraries have learned the hard way.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"
#include "seeded.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// A module with named parameters and nothing else; the loss is up to the test.
struct Parameters : torch::nn::Module {
  at::Tensor add(const std::string& name, at::Tensor value, bool trainable = true) {
    return register_parameter(name, std::move(value), trainable);
  }
};

DataParallelOptions options_for(std::string_view strategy) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap.cap_bytes = 64;
  return options;
}

constexpr std::array kStrategiesThatSend = {"naive", "flat", "overlap", "bucketed"};

// Two steps on two ranks under every strategy: the first step takes a path of its own.
void on_two_ranks(const std::function<void(const ProcessGroup&, const DataParallelOptions&)>& body) {
  for (const char* strategy : kStrategiesThatSend) {
    SCOPED_TRACE(strategy);
    run_ranks(2, [&](const ProcessGroup& group) { body(group, options_for(strategy)); });
  }
}

// A value that differs between the ranks; its mean over two ranks is 1.5.
double rank_value(const ProcessGroup& group) {
  return group.rank + 1.0;
}
constexpr double kMean = 1.5;

TEST(Corners, ATiedWeightIsSentOnceWithBothGradients) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("embedding", at::ones({4}));
    module.add("head", w);
    at::Tensor middle = module.add("middle", at::ones({4}));
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      ((w * middle + w) * rank_value(group)).sum().backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(w.grad(), at::full({4}, 2 * kMean)));
      EXPECT_EQ(ddp.stats().tensors.size(), 2);
    }
  });
}

TEST(Corners, AFrozenParameterIsLeftAlone) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("w", at::ones({3}));
    at::Tensor frozen = module.add("frozen", at::full({3}, 2.0), false);
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      (w * frozen * rank_value(group)).sum().backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 2 * kMean)));
      EXPECT_FALSE(frozen.grad().defined());
    }
  });
}

TEST(Corners, AParameterThatNoRankUsesIsAnErrorThatNamesIt) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("used", at::ones({3}));
    module.add("idle", at::ones({3}));
    DataParallel ddp(module, group, options);
    EXPECT_THAT([&] { w.sum().backward(); }, ThrowsMessage<StepError>(HasSubstr("no gradient for idle;")));
  });
}

TEST(Corners, AParameterThatOneRankDoesNotUseIsTheSameErrorEverywhere) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("w", at::ones({3}));
    at::Tensor sometimes = module.add("sometimes", at::ones({3}));
    DataParallel ddp(module, group, options);
    const bool uses = group.rank == 0;
    EXPECT_THAT([&] { (uses ? (w + sometimes).sum() : w.sum()).backward(); },
                ThrowsMessage<StepError>(AllOf(HasSubstr("rank 1"), HasSubstr("no gradient for sometimes;"))));
    EXPECT_FALSE(w.grad().defined());
    EXPECT_FALSE(sometimes.grad().defined());
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
      (uses ? (w + sometimes).sum() : w.sum()).backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(w.grad(), at::ones({3})));
      EXPECT_TRUE(at::equal(sometimes.grad(), at::full({3}, 0.5)));
      EXPECT_FALSE(never.grad().defined());
    }
  });
}

TEST(Corners, NoSyncAccumulatesAndTheNextBackwardSendsTheSum) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("w", at::ones({5}));
    at::Tensor v = module.add("v", at::ones({2}));
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {
        const auto scope = ddp.no_sync();
        ((w.sum() + v.sum()) * rank_value(group)).backward();
        EXPECT_TRUE(at::equal(w.grad(), at::full({5}, (micro + 1) * rank_value(group))));
      }
      ((w.sum() + v.sum()) * rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(w.grad(), at::full({5}, 3 * kMean)));
      EXPECT_TRUE(at::equal(v.grad(), at::full({2}, 3 * kMean)));
    }
  });
}

TEST(Corners, GradientsMayBeZeroedInPlaceOrReplaced) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("w", at::ones({5}));
    at::Tensor v = module.add("v", at::ones({2}));
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 4; ++step) {
      module.zero_grad(/*set_to_none=*/step == 2);
      if (step == 3) w.mutable_grad() = at::zeros({5});  // a tensor of the user's own
      ((w.sum() + v.sum()) * rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(w.grad(), at::full({5}, kMean))) << "step " << step;
      EXPECT_TRUE(at::equal(v.grad(), at::full({2}, kMean))) << "step " << step;
    }
  });
}

TEST(Corners, WithoutZeroGradTheNewMeanIsAddedToTheOld) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor w = module.add("w", at::ones({5}));
    DataParallel ddp(module, group, options);
    for (int step = 1; step <= 3; ++step) {
      (w.sum() * rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(w.grad(), at::full({5}, step * kMean)));
    }
  });
}

TEST(Corners, DtypesNeverShareABucket) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    options.cap.cap_bytes = 1 << 20;
    Parameters module;
    std::vector<at::Tensor> all;
    for (int i = 0; i < 9; ++i) {
      const at::ScalarType dtype = std::array{at::kFloat, at::kBFloat16, at::kDouble}[static_cast<size_t>(i) % 3];
      all.push_back(module.add(fmt::format("p{}", i), at::ones({i + 1}, dtype)));
    }
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (const at::Tensor& p : all) loss = loss + (p * rank_value(group)).sum().to(at::kDouble);
      loss.backward();
      ddp.finish_gradient_synchronization();
      for (const at::Tensor& p : all) {
        EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
        EXPECT_TRUE(at::equal(p.grad(), at::full_like(p, kMean)));
      }
    }
    const bool groups = options.strategy.name == "bucketed" || options.strategy.name == "flat";
    EXPECT_EQ(ddp.plan().buckets.size(), groups ? 3 : 9);
  });
}

TEST(Corners, ConvolutionsKeepTheirMemoryFormat) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)), torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 1)));
    net->to(at::kDouble);
    seed_parameters(*net, 1);
    for (at::Tensor& p : net->parameters()) {
      if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
    }
    const at::Tensor x = seeded_randn({4, 3, 6, 6}, 2).contiguous(at::MemoryFormat::ChannelsLast);
    net->forward(x).pow(2).mean().backward();
    std::vector<at::Tensor> expected;
    for (const at::Tensor& p : net->parameters()) expected.push_back(p.grad().clone());
    net->zero_grad();

    DataParallel ddp(*net, group, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      net->forward(x.narrow(0, 2 * group.rank, 2)).pow(2).mean().backward();
      ddp.finish_gradient_synchronization();
      for (size_t i = 0; i < expected.size(); ++i) {
        const at::Tensor p = net->parameters()[i];
        EXPECT_TRUE(at::allclose(p.grad(), expected[i], 1e-9, 1e-12));
        EXPECT_EQ(p.grad().strides(), p.strides());
      }
    }
  });
}

TEST(Corners, AGradientOfANonDenseParameterArrives) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor strided = module.add("strided", at::ones({4, 6}).slice(1, 0, 6, 2).detach());
    at::Tensor transposed = module.add("transposed", at::ones({4, 3}).t().detach());
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      ((strided.sum() + transposed.sum()) * rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(strided.grad(), at::full({4, 3}, kMean)));
      EXPECT_TRUE(at::equal(transposed.grad(), at::full({3, 4}, kMean)));
    }
  });
}

TEST(Corners, EmptyAndOversizedTensorsAndASingleOne) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Parameters module;
    at::Tensor empty = module.add("empty", at::ones({0, 3}));
    at::Tensor large = module.add("large", at::ones({1000}));
    at::Tensor small = module.add("small", at::ones({1}));
    DataParallel ddp(module, group, options);
    Parameters single;
    at::Tensor only = single.add("only", at::ones({2}));
    DataParallel ddp_of_single(single, group, options);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      single.zero_grad();
      ((empty.sum() + large.sum() + small.sum()) * rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      (only.sum() * rank_value(group)).backward();
      ddp_of_single.finish_gradient_synchronization();
      EXPECT_EQ(empty.grad().numel(), 0);
      EXPECT_TRUE(at::equal(large.grad(), at::full({1000}, kMean)));
      EXPECT_TRUE(at::equal(small.grad(), at::full({1}, kMean)));
      EXPECT_TRUE(at::equal(only.grad(), at::full({2}, kMean)));
    }
  });
}

TEST(Corners, BuffersFollowRank0) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    torch::nn::BatchNorm1d norm(3);
    DataParallel ddp(*norm, group, options);
    for (int step = 0; step < 2; ++step) {
      norm->forward(at::randn({8, 3}) + group.rank).sum().backward();
      ddp.finish_gradient_synchronization();
      const auto means = all_gather(group, {norm->running_mean[0].item<double>()});
      EXPECT_EQ(means[0], means[1]);
    }
  });
}

TEST(Corners, ASparseGradientIsRefused) {
  run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    DataParallel ddp(*embedding, group, options_for("flat"));
    EXPECT_THAT([&] { embedding->forward(at::arange(3)).sum().backward(); }, ThrowsMessage<InputError>(HasSubstr("sparse")));
  });
}

}  // namespace
}  // namespace firkin
