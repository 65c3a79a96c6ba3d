// What Watch names, and that it leaves steps alone.
#include "firkin/ddp/watch.h"

#include "../comm/thread_ranks.h"
#include "../torch.h"
#include "comm/across_ranks.h"
#include "test_models.h"

namespace firkin {
namespace {

// Parameters after some steps, watched or not. summary: of the watch; slow: what each step of rank 1 takes longer.
std::vector<at::Tensor> train(const ProcessGroup& group, std::optional<WatchOptions> watched, WatchSummary* summary = nullptr,
                              std::chrono::milliseconds slow = {}) {
  const TestModel model = make_mlp(at::kFloat);
  seed_parameters(*model.module, 1);
  DataParallelOptions options;
  options.cap.cap_bytes = 1024;
  DataParallel ddp(*model.module, group, options);
  std::optional<Watch> watch;
  if (watched) watch.emplace(ddp, group, *watched);
  torch::optim::SGD optimizer(model.module->parameters(), 0.1);
  const int64_t share = kGlobalBatch / group.size;
  for (int step = 0; step < 60; ++step) {
    if (group.rank == 1) std::this_thread::sleep_for(slow);
    optimizer.zero_grad();
    model.loss(step, share * group.rank, share).backward();
    optimizer.step();
  }
  if (summary != nullptr) *summary = watch->summary();
  return model.module->parameters();
}

TEST(Watch, NamesTheSlowRankOnRankZero) {
  run_ranks(2, [](const ProcessGroup& group) {
    std::string said;
    WatchSummary summary;
    for (const int slow_ms : {30, 100, 500}) {  // until it is more than a busy machine makes rank 0 wait for a processor in most steps
      train(group, WatchOptions{.every = 20, .warmup = 3, .log = [&said](const std::string& lines) { said += lines; }}, &summary,
            std::chrono::milliseconds(slow_ms));
      if (of_rank_0(group, summary.last_rank == 1 && summary.last_in == "before backward" ? 1 : 0) == 1) break;
    }
    if (group.rank != 0) {
      EXPECT_EQ(summary.steps, 0);
      EXPECT_EQ(said, "");
      return;
    }
    EXPECT_EQ(summary.steps, 20);
    EXPECT_THAT(summary.causes, Contains(kSlowRankCause));
    EXPECT_EQ(summary.last_rank, 1);
    EXPECT_EQ(summary.last_in, "before backward");
    EXPECT_THAT(said, HasSubstr("firkin.watch, steps 4 to 23, 2 ranks: "));
    EXPECT_THAT(said, HasSubstr("rank 1 is last in"));
  });
}

TEST(Watch, ReportsARunThatIsShorterThanAWindowWhenItIsDestroyed) {
  run_ranks(2, [](const ProcessGroup& group) {
    std::string said;
    train(group, WatchOptions{.every = 100, .warmup = 3, .log = [&said](const std::string& lines) { said += lines; }});
    if (group.rank == 0) {
      EXPECT_THAT(said, StartsWith("firkin.watch, steps 4 to 60, 2 ranks: "));
    } else {
      EXPECT_EQ(said, "");
    }
  });
}

TEST(Watch, ChangesNoBit) {
  run_ranks(3, [](const ProcessGroup& group) {
    const std::vector<at::Tensor> plain = train(group, std::nullopt);
    const std::vector<at::Tensor> watched = train(group, WatchOptions{.every = 20, .warmup = 3, .log = [](const std::string&) {}});
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], watched[i]));
  });
}

TEST(Watch, RefusesOptionsOutOfRange) {
  run_ranks(2, [](const ProcessGroup& group) { EXPECT_THROW(train(group, WatchOptions{.every = 0, .log = nullptr}), InputError); });
}

}  // namespace
}  // namespace firkin
