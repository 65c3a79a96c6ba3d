#include "firkin/plan/scaling.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/csv.h"
#include "firkin/plan/uncertainty.h"
#include "firkin/stats/summary.h"
#include "helpers.h"
#include "import/import.h"

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
  EXPECT_NEAR(*model.fits()[0].left_out_error, 0, 1e-9);
  EXPECT_NEAR(model.fits()[0].coefficients[1], 2e-6, 1e-12);
  for (const double bytes : {1024.0, 65536.0, 1048576.0 * 32}) {
    EXPECT_NEAR(model.costs(ScalingForm::kRing, 4096).isolated(bytes) / ring_s(4096, bytes), 1, 0.08) << bytes;
  }
  EXPECT_NEAR(model.costs(ScalingForm::kRing, 4096).isolated(1 << 28) / ring_s(4096, 1 << 28), 1, 1e-6);
}

TEST(ScalingModel, RecoversAPipelinedTreeExactly) {
  const ScalingModel model(table_of({4, 8, 16}, pipelined_tree_s));
  EXPECT_NEAR(*model.fits()[2].left_out_error, 0, 1e-9);
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

TEST(ScalingModel, AFormThatPredictsWhatWasLeftOutOutweighsOneThatDoesNot) {
  // Refuted forms had as much say as the one that fits, when the largest regret over all forms was minimised.
  const ScalingModel model(table_of({16, 32, 64}, ring_s));
  EXPECT_GT(model.fits()[0].weight, 0.99);
  const CommCosts ring = model.costs(ScalingForm::kRing, 1024);
  EXPECT_NEAR(model.costs(1024).isolated(1 << 20) / ring.isolated(1 << 20), 1, 0.01);
  double sum = 0;
  for (const FormFit& fit : model.fits()) sum += fit.weight;
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(ScalingModel, IsAnchoredAtTheNearestMeasuredWorld) {
  // The largest world is twice as slow as a ring through the others would be: what comes next goes on from there.
  const auto slow_at_64 = [](double ranks, double bytes) { return ring_s(ranks, bytes) * (ranks == 64 ? 2 : 1); };
  const AllReduceTable table = table_of({16, 32, 64}, slow_at_64);
  const ScalingModel model(table);
  for (const ScalingForm form : kScalingForms) {
    EXPECT_NEAR(model.costs(form, 64).isolated(1 << 24), slow_at_64(64, 1 << 24), 1e-12) << name_of(form);
    EXPECT_GT(model.costs(form, 128).isolated(1 << 24), slow_at_64(64, 1 << 24)) << name_of(form);
    EXPECT_NEAR(model.costs(form, 32).isolated(1 << 24), slow_at_64(32, 1 << 24), 1e-12) << name_of(form);
  }
}

TEST(ScalingModel, DrawsSpreadWhereALeftOutWorldWasMissedAndMoreSoFarAway) {
  // At 4 MiB, worlds differ by what no form explains.
  const auto rough = [](double ranks, double bytes) { return pipelined_tree_s(ranks, bytes) * (bytes == 4 << 20 && ranks == 32 ? 3 : 1); };
  const ScalingModel model(table_of({16, 32, 64}, rough));
  const auto spread = [&](int64_t world, double bytes) {
    std::vector<double> logs;
    for (const CommCosts& draw : model.redraw(world, 100)) logs.push_back(std::log(draw.isolated(bytes)));
    return stdev(logs);
  };
  EXPECT_GT(spread(1024, 4 << 20), 1.5 * spread(1024, 1 << 14));
  EXPECT_GT(spread(1024, 4 << 20), 1.5 * spread(128, 4 << 20));
  EXPECT_NEAR(spread(64, 4 << 20), 0, 1e-12);
}

TEST(ScalingModel, FitsTheThreeLargestWorldsUnlessToldOtherwise) {
  const AllReduceTable table = table_of({1, 2, 4, 8, 16}, ring_s);
  EXPECT_THAT(ScalingModel(table).fitted_worlds(), ElementsAre(4, 8, 16));
  EXPECT_THAT(ScalingModel(table, {.largest = 8}).fitted_worlds(), ElementsAre(2, 4, 8));
}

TEST(WorldsAlike, AreThoseWithinANodeOrThoseAcrossNodes) {
  const AllReduceTable table = table_of({2, 4, 8, 16, 32}, ring_s);
  EXPECT_THAT(ScalingModel(table, worlds_alike(1024, 8)).fitted_worlds(), ElementsAre(16, 32));
  EXPECT_THAT(ScalingModel(table, worlds_alike(6, 8)).fitted_worlds(), ElementsAre(2, 4, 8));
  EXPECT_THAT(ScalingModel(table, worlds_alike(1024, 0)).fitted_worlds(), ElementsAre(8, 16, 32));
  EXPECT_EQ(error_of([&] { ScalingModel(table, worlds_alike(1024, 64)); }),
            "no all-reduce was measured on 65 ranks or more; expected one to extrapolate from");
  EXPECT_EQ(error_of([] { worlds_alike(100, 8); }), "the world size is 100; expected a multiple of the 8 ranks of a node, or fewer");
  EXPECT_EQ(error_of([] { worlds_alike(100, -1); }), "a node has -1 ranks; expected at least 1");
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
            "no all-reduce was measured on 2 ranks or more; expected one to extrapolate from");
  const ScalingModel model(table_of({4}, ring_s));
  EXPECT_EQ(error_of([&] { model.costs(ScalingForm::kRing, 65537); }), "the world size is 65537; expected 2 to 65536");
  EXPECT_EQ(error_of([&] { model.costs(1); }), "the world size is 1; expected 2 to 65536");
}

// Published times, out of place, of one configuration ("": the file has one) at these world sizes.
AllReduceTable published(const std::string& file, const std::string& configuration, int64_t smallest_world, int64_t largest_world) {
  const CsvTable csv = read_csv(FIRKIN_SOURCE_DIR "/data/" + file,
                                {.required = {"ranks", "bytes", "time_us_oop", "time_us_ip"}, .optional = {"config", "nodes"}});
  AllReduceTable table;
  for (size_t row = 0; row < csv.rows(); ++row) {
    const int64_t world = csv.integer(row, "ranks");
    if (world < smallest_world || world > largest_world) continue;
    if (!configuration.empty() && csv.text(row, "config") != configuration) continue;
    table.push_back({.bytes = csv.integer(row, "bytes"), .world_size = world, .median_s = csv.number(row, "time_us_oop") * 1e-6});
  }
  return table;
}

// gpt2-large on an A100, its backward pass made as long as this.
TensorProfile gpt2_large(double backward_s) {
  const std::string data = FIRKIN_SOURCE_DIR "/data/cmsc828g/";
  TensorProfile profile = *import_files({data + "layer-sizes-gpt2_large-bs4.csv", data + "layer-times-gpt2_large-bs4.csv"}).profile;
  for (double& ready : profile.ready_s) ready *= backward_s / profile.backward_s;
  profile.backward_s = profile.ready_s.back();
  return profile;
}

double median_error(const CostCurve& predicted, const AllReduceTable& measured) {
  std::vector<double> errors;
  for (const AllReduceRow& row : measured) errors.push_back(std::abs(predicted(static_cast<double>(row.bytes)) / row.median_s - 1));
  return median(errors);
}

// What the cap of least expected regret costs on the measured times of `world`, over the best cap there; for both rules.
std::vector<double> regrets(const std::string& what, const AllReduceTable& fitted, const AllReduceTable& judged, int64_t world,
                            const std::vector<double>& backward_s) {
  const ScalingModel model(fitted);
  const CommCosts measured = comm_costs(judged, world);
  fmt::print("{}: {} ranks, median error of a(x) {:.1f} %\n", what, world, 100 * median_error(model.costs(world).isolated, judged));
  std::vector<double> result;
  for (const double backward : backward_s) {
    const TensorProfile profile = gpt2_large(backward);
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      const CapOdds odds(profile, redraw(model.redraw(world, kDraws), {}), {.rule = rule});
      const auto& [caps, plan] = odds.least_regret();
      const double end_s = simulate(profile, plan, measured).end_s;
      result.push_back(end_s / find_best_uniform_cap(profile, measured, {.rule = rule}).timeline.end_s - 1);
      fmt::print("  backward {:.2f} s, {}: {:.0f} MiB, regret {:.1f} %, expected {:.1f} %\n", backward, name_of(rule),
                 static_cast<double>(roundest_cap(caps)) / kMiB, 100 * result.back(), 100 * odds.of(plan).expected_regret);
    }
  }
  return result;
}

constexpr const char* kAzure = "allreduce_azure_a100_1to128gpu.csv";
constexpr const char* kAlps = "allreduce_alps_gh200_4to2048gpu.csv";

TEST(Azure, TimesOn128RanksAreWithin12PercentOfThoseFittedTo16To64) {
  const AllReduceTable judged = published(kAzure, "", 128, 128);
  EXPECT_EQ(judged.size(), 23u);
  EXPECT_LE(median_error(ScalingModel(published(kAzure, "", 16, 64)).costs(128).isolated, judged), 0.12);
}

TEST(Azure, TheCapChosenFor128RanksHasAtMost3PercentRegretOnTheirMeasuredTimes) {
  for (const double regret :
       regrets("Azure, fitted to 16 to 64", published(kAzure, "", 16, 64), published(kAzure, "", 128, 128), 128, {0.1, 0.4})) {
    EXPECT_LE(regret, 0.03);
  }
}

TEST(Azure, EvenFittedToAtMost16Of128RanksTheRegretStaysWithin3Percent) {
  AllReduceTable judged = published(kAzure, "", 128, 128);
  std::erase_if(judged, [](const AllReduceRow& row) { return row.bytes == 1024; });  // warm-up: 1.2 ms
  const AllReduceTable fitted = published(kAzure, "", 2, 16);
  EXPECT_LE(median_error(ScalingModel(fitted).costs(128).isolated, judged), 0.125);
  for (const double regret : regrets("Azure, fitted to at most 16", fitted, judged, 128, {0.05, 0.1, 0.4})) EXPECT_LE(regret, 0.03);
}

TEST(Azure, OfFewMeasuredWorldsThoseThatStayWithinANodeMislead) {
  AllReduceTable judged = published(kAzure, "", 128, 128);
  std::erase_if(judged, [](const AllReduceRow& row) { return row.bytes == 1024; });  // warm-up: 1.2 ms
  const AllReduceTable fitted = published(kAzure, "", 2, 16);
  const double any_world = median_error(ScalingModel(fitted).costs(128).isolated, judged);
  const double across_nodes = median_error(ScalingModel(fitted, worlds_alike(128, 8)).costs(128).isolated, judged);
  fmt::print("Azure, fitted to at most 16: median error of a(x) {:.1f} %, to what crosses nodes {:.1f} %\n", 100 * any_world,
             100 * across_nodes);
  EXPECT_LE(across_nodes, 0.09);
  EXPECT_LT(across_nodes, any_world);
}

TEST(Alps, CapsChosenFor2048RanksFromAtMost64HaveLittleRegretOnTheirMeasuredTimes) {
  std::vector<double> all;
  for (const char* configuration : {"default-ofi1.13.0", "cross_nic-ofi1.9.2", "ignore_cpu_affinity-ofi1.13.0"}) {
    const std::vector<double> some =
        regrets(fmt::format("Alps, {}, fitted to at most 64", configuration), published(kAlps, configuration, 4, 64),
                published(kAlps, configuration, 2048, 2048), 2048, {0.05, 0.12, 0.4});
    all.insert(all.end(), some.begin(), some.end());
  }
  fmt::print("Alps: median regret {:.2f} %, worst {:.1f} %\n", 100 * median(all), 100 * std::ranges::max(all));
  EXPECT_LE(median(all), 0.01);
  EXPECT_LE(std::ranges::max(all), 0.20);
}

}  // namespace
}  // namespace firkin
