// What ranks must agree on before the first step: every rank hears of the first difference, with both values; and of a rank without memory.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <latch>

#include "known_gradients.h"

#include "../test.h"

namespace firkin {
namespace {

struct Difference {
  std::function<void(DataParallelOptions&, TwoParameters&)> make;  // on the last rank
  std::string before, after;                                       // what the other ranks have, and that rank
};

void expect_named(int ranks, const std::vector<Difference>& differences) {
  run_ranks(ranks, [&](const ProcessGroup& group) {
    const int last = group.size - 1;
    for (const auto& [make, before, after] : differences) {
      DataParallelOptions options;
      TwoParameters module;
      if (group.rank == last) make(options, module);
      EXPECT_THAT(message_of<RuntimeError>([&] { DataParallel ddp(module, group, options); }),
                  AllOf(HasSubstr("rank 0 has " + before), HasSubstr(fmt::format("rank {} has {}", last, after))));
    }
    TwoParameters module;  // and the group is as good as new
    DataParallel ddp(module, group);
    module.loss(1).backward();
    module.expect_gradients(1);
  });
}

TEST(Construction, OptionsThatDifferAreNamedOnEveryRank) {
  const auto options = [](auto change) { return [change](DataParallelOptions& o, TwoParameters&) { change(o); }; };
  expect_named(2,
               {{options([](auto& o) { o.strategy = find_strategy("flat"); }), "strategy bucketed", "strategy flat"},
                {options([](auto& o) { o.cap.cap_bytes = 7; }), "cap 26214400 bytes", "cap 7 bytes"},
                {options([](auto& o) { o.cap.rule = CapRule::kAtMost; }), "cap rule close-when-full", "cap rule at-most"},
                {options([](auto& o) { o.cap.first_cap_bytes = 9; }), "first cap none", "first cap 9 bytes"},
                {options([](auto& o) {
                   o.plan = BucketPlan{{{0, 2}}, {}};
                 }),
                 "plan none", "plan buckets of 2 tensors"},
                {options([](auto& o) { o.buckets = automatic(); }), "buckets as given", "buckets automatic, budget 3 s"},
                {options([](auto& o) {
                   o.ready_order = {0, 1};
                 }),
                 "ready order []", "ready order [0, 1]"},
                {options([](auto& o) { o.gradient_hook = bf16_compression(); }), "gradient hook none", "gradient hook bf16"},
                {options([](auto& o) { o.finish_with_backward = false; }), "finish_with_backward true", "finish_with_backward false"},
                {options([](auto& o) { o.find_unused_parameters = true; }), "find_unused_parameters false", "find_unused_parameters true"},
                {options([](auto& o) { o.broadcast_buffers = false; }), "broadcast_buffers true", "broadcast_buffers false"},
                {options([](auto& o) { o.broadcast_parameters = false; }), "broadcast_parameters true", "broadcast_parameters false"},
                {options([](auto& o) { o.audit_every = 7; }), "audit_every 100", "audit_every 7"}});
}

TEST(Construction, ParametersAndBuffersThatDifferAreNamedOnEveryRank) {
  const auto module = [](auto change) { return [change](DataParallelOptions&, TwoParameters& m) { change(m); }; };
  expect_named(
      3, {{module([](TwoParameters& m) { m.b.set_data(at::ones({6})); }), "parameter b [4]", "parameter b [6]"},
          {module([](TwoParameters& m) { m.add("c", at::ones({5})); }), "nothing more", "parameter c [5]"},
          {module([](TwoParameters& m) { m.b.set_requires_grad(false); }), "parameter b [4]", "frozen parameter b [4]"},
          {module([](TwoParameters& m) { m.add("c", at::ones({3}), /*trainable=*/false); }), "nothing more", "frozen parameter c [3]"},
          {module([](TwoParameters& m) { m.add("tied", m.a); }), "nothing more", "parameter tied [4] Float"},
          {module([](TwoParameters& m) { m.register_buffer("seen", at::zeros({2})); }), "nothing more", "buffer seen [2] Float"}});
}

TEST(Construction, WeightsThatAreTiedOnOneRankOnlyAreADifference) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters pair({4});
    pair.add("second", group.rank == 0 ? pair.all[0] : at::ones({4}));
    EXPECT_THAT([&] { DataParallel ddp(pair, group); }, ThrowsMessage<RuntimeError>(HasSubstr("the same as p0; rank 1 has")));
  });
}

TEST(Construction, ATimeoutIsPositiveAndAsLongAsOneLikesOnEachRank) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallelOptions options;
    for (const auto timeout : {std::chrono::milliseconds(0), std::chrono::milliseconds::min()}) {
      options.timeout = timeout;
      EXPECT_THROW(DataParallel(module, group, options), InputError);
    }
    options.timeout = std::chrono::milliseconds::max() / (1 + group.rank);
    DataParallel ddp(module, group, options);
    module.loss(1).backward();
    module.expect_gradients(1);
  });
}

TEST(Construction, WhatOneRankCannotDoIsAnErrorOnAll) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
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

TEST(Construction, AModuleWithNothingToTrainIsRefused) {
  run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Dropout nothing;
    EXPECT_THROW(DataParallel(*nothing, group), InputError);
  });
}

// What each strategy does with parameters of a type: trains them, or refuses them with this.
struct DtypeRow {
  at::ScalarType dtype;
  const char* refusal = nullptr;
  const char* refusal_under_sharded = nullptr;
};

constexpr DtypeRow kDtypeRows[] = {
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
    for (const DtypeRow& row : kDtypeRows) {
      for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded"}) {
        SCOPED_TRACE(testing::Message() << c10::toString(row.dtype) << " under " << strategy);
        torch::nn::Module net;
        const at::Tensor weight = net.register_parameter("weight", at::ones({9}, at::kFloat).to(row.dtype));
        DataParallelOptions options = with_strategy(strategy);
        if (options.strategy.grouping == Grouping::kPlan) options.plan = BucketPlan{{{0, 1}}, {}};
        if (const char* refusal = options.strategy.shards ? row.refusal_under_sharded : row.refusal) {
          EXPECT_THAT([&] { DataParallel ddp(net, group, options); }, ThrowsMessage<InputError>(HasSubstr(refusal)));
          continue;
        }
        Training training(net, group, options, "Plain");
        for (int step = 0; step < 2; ++step) {
          (weight * (1.0 + group.rank)).sum().abs().backward();
          training.step();
          training.zero_grad();
        }
        const at::Tensor trained = training.ddp.module().parameters()[0].detach().to(at::kComplexDouble);
        EXPECT_TRUE(at::equal(trained, at::full({9}, -0.5, at::kComplexDouble))) << trained;  // 1 - 2 * 0.5 * (1 + 2) / 2
      }
    }
  });
}

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
constexpr size_t kScarce = 512 << 10;  // enough for every tensor by itself, too little for a bucket of all
const std::vector<int64_t> kTensors(20, 16 << 10);
thread_local size_t largest_allocation = kUnlimited;

// LibTorch's own allocator for the CPU, except that it refuses a thread what is larger than that thread may have.
class ScarceAllocator : public c10::Allocator {
 public:
  explicit ScarceAllocator(c10::Allocator* real) : real_(real) {}
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= largest_allocation, "no memory for ", bytes, " bytes, on purpose");
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator* real_;
};

// Either rank 1's want of memory in `body` does not matter, or every rank has an error; within seconds, while rank 1 still lives. scarce:
// what the rank's `largest_allocation` is to be.
void expect_that_all_ranks_hear(const std::function<void(const ProcessGroup&, size_t scarce)>& body) {
  static auto* const allocator = new ScarceAllocator(c10::GetAllocator(c10::kCPU));  // lives as long as tensors may
  c10::SetAllocator(c10::kCPU, allocator, /*priority=*/1);
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    std::latch all_have_heard(ranks);
    const auto started = std::chrono::steady_clock::now();
    const std::vector<std::string> errors = results_of(ranks, [&](const ProcessGroup& group) {
      const std::string error = error_of([&] { body(group, group.rank == 1 ? kScarce : kUnlimited); });
      largest_allocation = kUnlimited;
      all_have_heard.arrive_and_wait();
      return error;
    });
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));  // timeouts are 60 s
    if (errors[1].empty()) {
      EXPECT_THAT(errors, Each(IsEmpty()));
      continue;
    }
    for (size_t rank = 0; rank < errors.size(); ++rank)
      EXPECT_THAT(errors[rank], HasSubstr(rank == 1 ? "no memory for" : "rank 1")) << rank;
  }
}

TEST(OutOfMemory, AtConstructionOnOneRankIsAnErrorOnAll) {
  expect_that_all_ranks_hear([](const ProcessGroup& group, size_t scarce) {
    Parameters net(kTensors);
    largest_allocation = scarce;
    DataParallel ddp(net, group);
    largest_allocation = kUnlimited;
    net.loss(rank_value(group)).backward();
  });
}

TEST(OutOfMemory, WhenBucketsAreMadeAnewOnOneRankIsAnErrorOnAll) {
  expect_that_all_ranks_hear([](const ProcessGroup& group, size_t scarce) {
    Parameters net(kTensors);
    net.all[0].set_requires_grad(false);
    DataParallel ddp(net, group);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) net.all[0].set_requires_grad(true);
      if (step == 2) largest_allocation = scarce;
      net.zero_grad();
      net.loss(rank_value(group)).backward();
      EXPECT_TRUE(at::equal(net.all[0].grad().defined() ? net.all[0].grad() : net.all[1].grad(), net.all[1].grad()));
    }
  });
}

}  // namespace
}  // namespace firkin
