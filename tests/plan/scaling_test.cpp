#include "firkin/plan/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "firkin/base/csv.h"
#include "firkin/plan/import_cmsc828g.h"
#include "firkin/stats/summary.h"
#include "helpers.h"

namespace firkin {
namespace {

using testing::ElementsAre;

AllReduceTable table_of(const std::vector<int64_t>& worlds, const std::function<double(double, double)>& seconds) {
  AllReduceTable table;
  for (const int64_t world : worlds) {
    for (int64_t bytes = 1024; bytes <= 1 << 30; bytes *= 8) {
      table.push_back({.bytes = bytes, .world_size = world, .median_s = seconds(static_cast<double>(world), static_cast<double>(bytes))});
    }
  }
  return table;
}

double ring_s(double ranks, double bytes) {
  return 5e-6 + 2e-6 * (ranks - 1) + 1e-10 * bytes * (ranks - 1) / ranks;
}
double pipelined_tree_s(double ranks, double bytes) {
  const double depth = std::ceil(std::log2(ranks));
  return 5e-6 * depth + 1e-10 * bytes + 2e-8 * std::sqrt(depth * bytes);
}

TEST(ScalingModel, RecoversARingExactly) {
  const ScalingModel model(table_of({4, 8, 16}, ring_s));
  EXPECT_NEAR(model.fits()[0].median_relative_error, 0, 1e-9);
  EXPECT_NEAR(model.fits()[0].coefficients[1], 2e-6, 1e-12);
  for (const double bytes : {1024.0, 65536.0, 1048576.0 * 32}) {
    EXPECT_NEAR(model.costs(ScalingForm::kRing, 4096).isolated(bytes) / ring_s(4096, bytes), 1, 0.08) << bytes;
  }
  EXPECT_NEAR(model.costs(ScalingForm::kRing, 4096).isolated(1 << 28) / ring_s(4096, 1 << 28), 1, 1e-6);
}

TEST(ScalingModel, RecoversAPipelinedTreeExactly) {
  const ScalingModel model(table_of({4, 8, 16}, pipelined_tree_s));
  EXPECT_NEAR(model.fits()[2].median_relative_error, 0, 1e-9);
  EXPECT_NEAR(model.costs(ScalingForm::kPipelinedTree, 1024).isolated(1 << 19) / pipelined_tree_s(1024, 1 << 19), 1, 1e-6);
}

TEST(ScalingModel, KeepsTheBendsOfTheMeasuredCurve) {
  // Every world takes three times as long at 64 KiB as a ring would.
  const auto bent = [](double ranks, double bytes) { return ring_s(ranks, bytes) * (bytes == 65536 ? 3 : 1); };
  const ScalingModel model(table_of({4, 8, 16}, bent));
  const CostCurve curve = model.costs(ScalingForm::kRing, 64).isolated;
  EXPECT_GT(curve(65536), 2 * curve(8192));
  EXPECT_GT(curve(65536), 2 * ring_s(64, 65536));
}

TEST(ScalingModel, TheSpreadGrowsWithTheDistanceFromWhatWasMeasured) {
  const ScalingModel model(table_of({16, 32, 64}, ring_s));
  const auto spread = [&](int64_t world) {
    const TimeRange range = model.range(world, 1 << 20);
    EXPECT_LE(range.low_s, range.median_s);
    EXPECT_LE(range.median_s, range.high_s);
    return range.high_s / range.low_s;
  };
  EXPECT_LT(spread(64), spread(1024));
  EXPECT_LT(spread(1024), spread(65536));
}

TEST(ScalingModel, FitsTheThreeLargestWorldsUnlessToldOtherwise) {
  const AllReduceTable table = table_of({1, 2, 4, 8, 16}, ring_s);
  EXPECT_THAT(ScalingModel(table).fitted_worlds(), ElementsAre(4, 8, 16));
  EXPECT_THAT(ScalingModel(table, 1).fitted_worlds(), ElementsAre(2, 4, 8, 16));
}

TEST(ScalingModel, FromOneWorldAllLatencyGrows) {
  const ScalingModel model(table_of({8}, ring_s));
  EXPECT_EQ(model.fits()[0].coefficients[0], 0);
  EXPECT_GT(model.costs(ScalingForm::kRing, 64).isolated(1024), 5 * ring_s(8, 1024));
}

TEST(ScalingModel, KeepsTheMeasuredRatioOfGapToIsolatedTime) {
  AllReduceTable table = table_of({4, 8}, ring_s);
  for (AllReduceRow& row : table) row.gap_s = row.median_s / 2;
  const CommCosts costs = ScalingModel(table).costs(ScalingForm::kTree, 32);
  EXPECT_NEAR(costs.gap(65536) / costs.isolated(65536), 0.5, 1e-12);
}

TEST(ScalingModel, RejectsWhatItCannotExtrapolate) {
  EXPECT_EQ(error_of([] { ScalingModel(table_of({1}, ring_s)); }),
            "no all-reduce was measured on 2 to 65536 ranks; expected one to extrapolate from");
  const ScalingModel model(table_of({4}, ring_s));
  EXPECT_EQ(error_of([&] { model.costs(ScalingForm::kRing, 65537); }), "the world size is 65537; expected 2 to 65536");
  EXPECT_EQ(error_of([&] { model.median_costs(1); }), "the world size is 1; expected 2 to 65536");
}

TEST(MinimaxRegret, OfOneModelIsItsBestCap) {
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  const CommCosts costs = linear_costs(0.25, 1.0 / 32);
  const MinimaxRegretCap chosen = find_minimax_regret_cap(profile, {costs}, {.rule = CapRule::kAtMost});
  EXPECT_EQ(chosen.largest_regret, 0);
  EXPECT_DOUBLE_EQ(chosen.end_s[0], find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost}).timeline.end_s);
}

TEST(MinimaxRegret, IsTheCapThatIsLeastWrongUnderAll) {
  // Four tensors. Under the fast model one bucket ends at 4 + 1.25, two at 4.75, four at 4.5; under the slow one (16 s a call) at 21,
  // 34, 65.
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  const std::vector<CommCosts> models = {linear_costs(0.25, 1.0 / 32), linear_costs(16, 1.0 / 32)};
  const MinimaxRegretCap chosen = find_minimax_regret_cap(profile, models, {.rule = CapRule::kAtMost});
  EXPECT_EQ(chosen.plan.buckets.size(), 1u);
  EXPECT_NEAR(chosen.largest_regret, 5.25 / 4.5 - 1, 1e-12);
}

// Microseconds of Azure's A100s (out of place) at these world sizes.
AllReduceTable azure(int64_t smallest_world, int64_t largest_world) {
  const CsvTable csv =
      read_csv(FIRKIN_SOURCE_DIR "/data/allreduce_azure_a100_1to128gpu.csv", {.required = {"ranks", "bytes", "time_us_oop", "time_us_ip"}});
  AllReduceTable table;
  for (size_t row = 0; row < csv.rows(); ++row) {
    const int64_t world = csv.integer(row, "ranks");
    if (world < smallest_world || world > largest_world) continue;
    table.push_back({.bytes = csv.integer(row, "bytes"), .world_size = world, .median_s = csv.number(row, "time_us_oop") * 1e-6});
  }
  return table;
}

TEST(Azure, TimesOn128RanksAreWithin15PercentOfThoseFittedTo16To64) {
  const CostCurve predicted = ScalingModel(azure(16, 64)).median_costs(128).isolated;
  std::vector<double> errors;
  for (const AllReduceRow& row : azure(128, 128)) {
    errors.push_back(std::abs(predicted(static_cast<double>(row.bytes)) / row.median_s - 1));
  }
  EXPECT_EQ(errors.size(), 23u);
  EXPECT_LE(median(errors), 0.15);
}

TEST(Azure, TheCapChosenFor128RanksHasAtMost5PercentRegretOnTheirMeasuredTimes) {
  const ScalingModel model(azure(16, 64));
  std::vector<CommCosts> forms;
  for (const ScalingForm form : kScalingForms) forms.push_back(model.costs(form, 128));
  const CommCosts measured = comm_costs(azure(128, 128), 128);
  const std::string data = FIRKIN_SOURCE_DIR "/data/cmsc828g/";
  const TensorProfile gpt2_large =
      read_cmsc828g_profile(data + "layer-sizes-gpt2_large-bs4.csv", data + "layer-times-gpt2_large-bs4.csv", "gpt2-large").profile;
  for (const double backward_s : {0.1, 0.4}) {
    TensorProfile profile = gpt2_large;
    for (double& ready : profile.ready_s) ready *= backward_s / gpt2_large.backward_s;
    profile.backward_s = profile.ready_s.back();
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      const MinimaxRegretCap chosen = find_minimax_regret_cap(profile, forms, {.rule = rule});
      const double end_s = simulate(profile, chosen.plan, measured).end_s;
      const double best_s = find_best_uniform_cap(profile, measured, {.rule = rule}).timeline.end_s;
      EXPECT_LE(end_s, 1.05 * best_s) << "backward " << backward_s << " s, cap " << chosen.cap_bytes;
    }
  }
}

}  // namespace
}  // namespace firkin
