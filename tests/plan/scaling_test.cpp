#include "firkin/plan/scaling.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "firkin/base/csv.h"
#include "firkin/plan/uncertainty.h"
#include "firkin/stats/estimates.h"
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
  EXPECT_NEAR(model.fits()[0].coefficients[1], 2e-6, 1e-12);
  for (const double bytes : {1024.0, 65536.0, 1048576.0 * 32}) {
    EXPECT_NEAR(model.costs(ScalingForm::kRing, 4096).isolated(bytes) / ring_s(4096, bytes), 1, 0.08) << bytes;
  }
  EXPECT_NEAR(model.costs(ScalingForm::kRing, 4096).isolated(1 << 28) / ring_s(4096, 1 << 28), 1, 1e-6);
}

TEST(ScalingModel, RecoversAPipelinedTreeExactly) {
  const ScalingModel model(table_of({4, 8, 16}, pipelined_tree_s));
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

TEST(ScalingModel, TakesTheGeometricMeanOfTheForms) {
  const ScalingModel model(table_of({16, 32, 64}, ring_s));
  for (const double bytes : {1024.0, 4194304.0}) {
    double logarithm = 0;
    for (const ScalingForm form : kScalingForms) logarithm += std::log(model.costs(form, 1024).isolated(bytes)) / kScalingForms.size();
    EXPECT_NEAR(model.costs(1024).isolated(bytes) / std::exp(logarithm), 1, 1e-12);
  }
}

TEST(ScalingModel, IsAnchoredAtTheNearestMeasuredWorld) {
  // The largest world is twice as slow as a ring through the others would be: what comes next goes on from there.
  const auto slow_at_64 = [](double ranks, double bytes) { return ring_s(ranks, bytes) * (ranks == 64 ? 2 : 1); };
  const AllReduceTable table = table_of({16, 32, 64}, slow_at_64);
  const ScalingModel model(table);
  for (const ScalingForm form : kScalingForms) {
    EXPECT_NEAR(model.costs(form, 64).isolated(1 << 24), slow_at_64(64, 1 << 24), 1e-12) << static_cast<int>(form);
    EXPECT_GT(model.costs(form, 128).isolated(1 << 24), slow_at_64(64, 1 << 24)) << static_cast<int>(form);
    EXPECT_NEAR(model.costs(form, 32).isolated(1 << 24), slow_at_64(32, 1 << 24), 1e-12) << static_cast<int>(form);
  }
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

constexpr const char* kAzure = "allreduce_azure_a100_1to128gpu.csv";
constexpr const char* kAlps = "allreduce_alps_gh200_4to2048gpu.csv";

AllReduceTable azure(int64_t smallest_world, int64_t largest_world) {
  AllReduceTable table = published(kAzure, "", smallest_world, largest_world);
  std::erase_if(table, [](const AllReduceRow& row) { return row.world_size == 128 && row.bytes == 1024; });  // warm-up: 1.2 ms
  return table;
}

TEST(Azure, OfFewMeasuredWorldsThoseThatStayWithinANodeMislead) {
  const AllReduceTable judged = azure(128, 128), fitted = azure(2, 16);
  const double any_world = median_error(ScalingModel(fitted).costs(128).isolated, judged);
  const double across_nodes = median_error(ScalingModel(fitted, worlds_alike(128, 8)).costs(128).isolated, judged);
  fmt::print("Azure, fitted to at most 16: median error of a(x) {:.1f} %, to what crosses nodes {:.1f} %\n", 100 * any_world,
             100 * across_nodes);
  EXPECT_LT(across_nodes, any_world);
}

// What caps chosen from smaller worlds cost on the measured times of `world`, over the best cap there.
struct Regrets {
  std::vector<double> chosen, best_of_mean, pytorch_default, error;

  void add(const AllReduceTable& fitted, const AllReduceTable& judged, int64_t world) {
    const ScalingModel model(fitted);
    const CommCosts measured = comm_costs(judged, world), mean = model.costs(world);
    std::vector<CommCosts> forms;
    for (const ScalingForm form : kScalingForms) forms.push_back(model.costs(form, world));
    error.push_back(median_error(mean.isolated, judged));
    for (const double backward_s : {0.05, 0.12, 0.4}) {
      const TensorProfile profile = gpt2_large(backward_s);
      const double least_s = find_best_uniform_cap(profile, measured, {}).timeline.end_s;
      const auto regret = [&](const BucketPlan& plan) { return simulate(profile, plan, measured).end_s / least_s - 1; };
      chosen.push_back(regret(CapOdds(profile, draws_of(forms), {}).least_regret().plan));
      best_of_mean.push_back(regret(find_best_uniform_cap(profile, mean, {}).plan));
      pytorch_default.push_back(regret(assign_buckets(profile.bytes, kTorchDefaultCaps)));
    }
  }

  void print() const {
    for (const auto& [name, values] :
         {std::pair("chosen cap", &chosen), {"best cap of the mean", &best_of_mean}, {"PyTorch's default", &pytorch_default}}) {
      fmt::print("{:22} {} cases: regret {:.1f} % in the median, {:.1f} % at the 90th percentile, {:.1f} % at worst\n", name,
                 values->size(), 100 * median(*values), 100 * quantile(*values, 0.9), 100 * std::ranges::max(*values));
    }
    fmt::print("median error of a(x): {:.0f} % in the median of tables, {:.0f} % at worst\n", 100 * median(error),
               100 * std::ranges::max(error));
  }
};

struct Split {
  int64_t largest_fitted, judged;
};

constexpr std::array kAlpsSettings = {"default-ofi1.13.0", "cross_nic-ofi1.9.2", "ignore_cpu_affinity-ofi1.13.0"};

TEST(Growth, FewFormsInEqualSharesChooseACapFor32TimesTheRanks) {
  Regrets regrets;
  for (const char* setting : kAlpsSettings) regrets.add(published(kAlps, setting, 4, 64), published(kAlps, setting, 2048, 2048), 2048);
  regrets.print();
  EXPECT_LE(median(regrets.chosen), 0.02);
}

TEST(GrowthFull, ChoosesCapsForLargerWorldsWhereverTheMeasurementsEnd) {
  Regrets regrets;
  for (const auto& [largest, world] : {Split{16, 64}, {16, 128}, {32, 128}, {64, 128}}) {
    regrets.add(azure(2, largest), azure(world, world), world);
  }
  for (const char* setting : kAlpsSettings) {
    for (const auto& [largest, world] : {Split{16, 256}, {32, 512}, {64, 512}, {32, 2048}, {64, 2048}, {128, 2048}, {256, 2048}}) {
      regrets.add(published(kAlps, setting, 4, largest), published(kAlps, setting, world, world), world);
    }
  }
  regrets.print();
  EXPECT_LE(median(regrets.chosen), 0.02);
  EXPECT_LE(quantile(regrets.chosen, 0.9), 0.25);
}

}  // namespace
}  // namespace firkin
