// All-reduces of more ranks than were measured.

#include "../test.h"
#include "firkin/base/csv.h"
#include "firkin/plan/uncertainty.h"
#include "firkin/stats/estimates.h"
#include "helpers.h"
#include "import/import.h"

namespace firkin {
namespace {

double ring_s(double ranks, double bytes) {
  return 5e-6 + 2e-6 * (ranks - 1) + 1e-10 * bytes * (ranks - 1) / ranks;
}

TEST(GrownCosts, HoldARingAndATree) {
  const auto tree_s = [](double ranks, double bytes) { return std::log2(ranks) * (5e-6 + 1e-10 * bytes); };
  for (const double bytes : {1024.0, 65536.0, 1048576.0 * 32}) {
    const CommCosts tree = grown_costs(table_of({4, 16}, tree_s), 1024).laws[3];
    EXPECT_NEAR(tree.isolated(bytes) / tree_s(1024, bytes), 1, 1e-9) << bytes;
  }
  const CommCosts ring = grown_costs(table_of({64}, ring_s), 1024).laws[1];
  EXPECT_NEAR(ring.isolated(1024) / ring_s(1024, 1024), 1, 0.05);
  EXPECT_NEAR(ring.isolated(1 << 30) / ring_s(1024, 1 << 30), 1, 0.1);  // the latency of the largest call counts as its bytes'
}

TEST(GrownCosts, AreWithinTheLawsAndGoOnFromTheNearestMeasuredWorld) {
  const AllReduceTable table = table_of({16, 32, 64}, ring_s);
  EXPECT_EQ(grown_costs(table, 4096).from_world, 64);
  EXPECT_EQ(grown_costs(table, 20).from_world, 16);
  EXPECT_EQ(grown_costs(table, 2).from_world, 16);
  for (const double bytes : {1024.0, 4194304.0}) {
    const GrownCosts grown = grown_costs(table, 1024);
    std::vector<double> seconds;
    for (const CommCosts& law : grown.laws) seconds.push_back(law.isolated(bytes));
    EXPECT_GT(grown.likely.isolated(bytes), std::ranges::min(seconds));
    EXPECT_LT(grown.likely.isolated(bytes), std::ranges::max(seconds));
  }
}

TEST(GrownCosts, RefuseWhatCannotBeExtrapolated) {
  EXPECT_EQ(error_of([] { grown_costs(table_of({1}, ring_s), 8); }),
            "no all-reduce was measured on 2 ranks or more; expected one to extrapolate from");
  const AllReduceTable table = table_of({4}, ring_s);
  EXPECT_EQ(error_of([&] { grown_costs(table, 65537); }), "the world size is 65537; expected 2 to 65536");
  EXPECT_EQ(error_of([&] { grown_costs(table, 1); }), "the world size is 1; expected 2 to 65536");
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

// What caps chosen from smaller worlds cost on the measured times of `world`, over the best cap there.
struct Regrets {
  std::vector<double> chosen, pytorch_default, error;

  void add(const AllReduceTable& fitted, const AllReduceTable& judged, int64_t world) {
    const GrownCosts grown = grown_costs(fitted, world);
    const CommCosts measured = comm_costs(judged, world);
    error.push_back(median_error(grown.likely.isolated, judged));
    for (const double backward_s : {0.05, 0.12, 0.4}) {
      const TensorProfile profile = gpt2_large(backward_s);
      const double least_s = find_best_uniform_cap(profile, measured, {}).timeline.end_s;
      const auto regret = [&](const BucketPlan& plan) { return simulate(profile, plan, measured).end_s / least_s - 1; };
      constexpr bool kContentionKnown = true;  // the measured times are simulated without any
      const std::vector<InputDraw> draws = possible_inputs(grown.laws, {}, kContentionKnown);
      chosen.push_back(regret(CapOdds(profile, draws, {}).least_regret(kSameShareOfGrown).plan));
      pytorch_default.push_back(regret(assign_buckets(profile.bytes, kTorchDefaultCaps)));
    }
  }

  void print() const {
    for (const auto& [name, values] : {std::pair("chosen cap", &chosen), {"PyTorch's default", &pytorch_default}}) {
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

TEST(Growth, FourLawsChooseACapFor32TimesTheRanks) {
  Regrets regrets;
  for (const char* setting : kAlpsSettings) regrets.add(published(kAlps, setting, 4, 64), published(kAlps, setting, 2048, 2048), 2048);
  regrets.print();
  EXPECT_LE(median(regrets.chosen), 0.03);
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
  EXPECT_LE(median(regrets.chosen), 0.03);
  EXPECT_LE(quantile(regrets.chosen, 0.9), 0.25);
}

}  // namespace
}  // namespace firkin
