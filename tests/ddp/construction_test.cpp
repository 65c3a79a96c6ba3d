// What ranks must agree on before the first step: every rank hears of the first difference, with both values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"
#include "sharded_training.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Module : torch::nn::Module {
  at::Tensor a = register_parameter("a", at::ones({4}));
  at::Tensor b = register_parameter("b", at::ones({4}));
};

using Change = std::function<void(DataParallelOptions&, Module&)>;

// Rank 1 of two is changed; both must name what rank 0 has and what rank 1 has.
void expect_difference(const Change& change, const std::string& of_rank_0, const std::string& of_rank_1) {
  run_ranks(2, [&](const ProcessGroup& group) {
    DataParallelOptions options;
    Module module;
    if (group.rank == 1) change(options, module);
    EXPECT_THAT([&] { DataParallel ddp(module, group, options); },
                ThrowsMessage<RuntimeError>(AllOf(HasSubstr("rank 0 has " + of_rank_0), HasSubstr("rank 1 has " + of_rank_1))));
  });
}

TEST(Construction, OptionsThatDifferAreNamedOnEveryRank) {
  const auto options = [](auto change) { return [change](DataParallelOptions& o, Module&) { change(o); }; };
  expect_difference(options([](auto& o) { o.strategy = find_strategy("flat"); }), "strategy bucketed", "strategy flat");
  expect_difference(options([](auto& o) { o.cap.cap_bytes = 7; }), "cap 26214400 bytes", "cap 7 bytes");
  expect_difference(options([](auto& o) { o.cap.rule = CapRule::kAtMost; }), "cap rule close-when-full", "cap rule at-most");
  expect_difference(options([](auto& o) { o.cap.first_cap_bytes = 9; }), "first cap none", "first cap 9 bytes");
  expect_difference(options([](auto& o) { o.plan = BucketPlan{{{0, 2}}, {}}; }), "plan none", "plan buckets of 2 tensors");
  expect_difference(options([](auto& o) { o.buckets = automatic(); }), "buckets as given", "buckets automatic, budget 3 s");
  expect_difference(options([](auto& o) { o.ready_order = {0, 1}; }), "ready order []", "ready order [0, 1]");
  expect_difference(options([](auto& o) { o.gradient_hook = bf16_compression(); }), "gradient hook none", "gradient hook bf16");
  expect_difference(options([](auto& o) { o.finish_with_backward = false; }), "finish_with_backward true", "finish_with_backward false");
  expect_difference(options([](auto& o) { o.find_unused_parameters = true; }), "find_unused_parameters false",
                    "find_unused_parameters true");
  expect_difference(options([](auto& o) { o.broadcast_buffers = false; }), "broadcast_buffers true", "broadcast_buffers false");
  expect_difference(options([](auto& o) { o.broadcast_parameters = false; }), "broadcast_parameters true", "broadcast_parameters false");
}

TEST(Construction, FrozenParametersAndBuffersThatDifferAreNamedOnEveryRank) {
  const auto module = [](auto change) { return [change](DataParallelOptions&, Module& m) { change(m); }; };
  expect_difference(module([](Module& m) { m.b.set_requires_grad(false); }), "parameter b [4]", "frozen parameter b [4]");
  expect_difference(module([](Module& m) { m.register_parameter("c", at::ones({3}), false); }), "nothing more", "frozen parameter c [3]");
  expect_difference(module([](Module& m) { m.register_parameter("tied", m.a); }), "nothing more", "parameter tied [4] Float");
  expect_difference(module([](Module& m) { m.register_buffer("seen", at::zeros({2})); }), "nothing more", "buffer seen [2] Float");
}

TEST(Construction, WeightsThatAreTiedOnOneRankOnlyAreADifference) {
  run_ranks(2, [](const ProcessGroup& group) {
    struct Pair : torch::nn::Module {
      explicit Pair(bool tied) {
        at::Tensor first = register_parameter("first", at::ones({4}));
        register_parameter("second", tied ? first : at::ones({4}));
      }
    } module(group.rank == 0);
    EXPECT_THAT([&] { DataParallel ddp(module, group); }, ThrowsMessage<RuntimeError>(HasSubstr("the same as first; rank 1 has")));
  });
}

TEST(Construction, ATimeoutOfItsOwnIsNoDifference) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    DataParallelOptions options;
    options.timeout = std::chrono::seconds(10 + group.rank);
    DataParallel ddp(module, group, options);
    (module.a + module.b).sum().backward();
    EXPECT_TRUE(at::equal(module.a.grad(), at::ones({4})));
  });
}

TEST(Construction, WhatOneRankCannotDoIsAnErrorOnAll) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    std::optional<DataParallel> wrapped;
    run_ranks(1, [&](const ProcessGroup& alone) {
      if (group.rank == 1) wrapped.emplace(module, alone);
    });
    if (group.rank == 1) {
      EXPECT_THAT([&] { DataParallel ddp(module, group); }, ThrowsMessage<InputError>(HasSubstr("is wrapped already")));
    } else {
      EXPECT_THAT([&] { DataParallel ddp(module, group); },
                  ThrowsMessage<RuntimeError>(AllOf(HasSubstr("rank 1 cannot begin"), HasSubstr("is wrapped already"))));
    }
  });
}

// What each strategy does with parameters of a type: trains them, or refuses them with this.
struct DtypeRow {
  at::ScalarType dtype;
  const char* refusal = nullptr;
  const char* refusal_under_sharded = nullptr;
};

constexpr DtypeRow kDtypes[] = {
    {at::kFloat},
    {at::kDouble},
    {at::kHalf},
    {at::kBFloat16},
    {at::kComplexFloat, nullptr, "weight is ComplexFloat, which the strategy sharded cannot send"},
    {at::kComplexDouble, nullptr, "weight is ComplexDouble, which the strategy sharded cannot send"},
    {at::kFloat8_e5m2, "weight is Float8_e5m2, which Gloo cannot sum", "which Gloo cannot sum"},
    {at::kFloat8_e4m3fn, "weight is Float8_e4m3fn, which Gloo cannot sum", "which Gloo cannot sum"},
};

TEST(Construction, EveryDtypeIsTrainedOrRefusedByName) {
  run_ranks(2, [](const ProcessGroup& group) {
    for (const DtypeRow& row : kDtypes) {
      for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded"}) {
        SCOPED_TRACE(testing::Message() << c10::toString(row.dtype) << " under " << strategy);
        torch::nn::Module net;
        const at::Tensor weight = net.register_parameter("weight", at::ones({9}, at::kFloat).to(row.dtype));
        DataParallelOptions options;
        options.strategy = find_strategy(strategy);
        if (options.strategy.grouping == Grouping::kPlan) options.plan = BucketPlan{{{0, 1}}, {}};
        if (const char* refusal = options.strategy.shards ? row.refusal_under_sharded : row.refusal) {
          EXPECT_THAT([&] { DataParallel ddp(net, group, options); }, ThrowsMessage<InputError>(HasSubstr(refusal)));
          continue;
        }
        ShardedTraining training(net, group, options, "Plain");
        for (int step = 0; step < 2; ++step) {
          (weight * (1.0 + group.rank)).sum().abs().backward();
          training.step();
          if (training.plain) training.zero_grad();
        }
        const at::Tensor trained = training.ddp.module().parameters()[0].detach().to(at::kComplexDouble);
        EXPECT_TRUE(at::equal(trained, at::full({9}, -0.5, at::kComplexDouble))) << trained;  // 1 - 2 * 0.5 * (1 + 2) / 2
      }
    }
  });
}

TEST(Construction, CanBeTriedAgainOnTheSameGroupAfterADifference) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    for (const int64_t cap : {int64_t{1}, int64_t{2}}) {
      DataParallelOptions options;
      options.cap.cap_bytes = cap + 10 * group.rank;
      EXPECT_THAT([&] { DataParallel ddp(module, group, options); },
                  ThrowsMessage<RuntimeError>(HasSubstr("rank 0 has cap " + std::to_string(cap) + " bytes")));
    }
    DataParallel ddp(module, group);
    ((module.a + module.b) * (1.0 + group.rank)).sum().backward();
    EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, 1.5)));
  });
}

}  // namespace
}  // namespace firkin
