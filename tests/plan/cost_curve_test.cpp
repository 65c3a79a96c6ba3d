#include "firkin/plan/cost_curve.h"

#include "../test.h"
#include "firkin/base/units.h"
#include "helpers.h"

namespace firkin {
namespace {

struct Curve {
  const char* what;
  std::vector<CostPoint> points;
  std::vector<std::pair<double, double>> expected;  // bytes, seconds
};

// 20 us + 0.1 ns a byte, at sizes a factor of 4 apart: on logarithmic axes 800 kB would come out 5 % too slow.
constexpr double on_line(double bytes) {
  return 20e-6 + 1e-10 * bytes;
}

std::vector<std::pair<double, double>> all_on_line(const std::vector<double>& sizes) {
  std::vector<std::pair<double, double>> points;
  for (const double bytes : sizes) points.emplace_back(bytes, on_line(bytes));
  return points;
}

TEST(CostCurve, IsLinearBetweenMeasurementsAndBeyondThem) {
  std::vector<CostPoint> line;
  for (int64_t bytes = 1024; bytes <= 1 << 24; bytes *= 4) line.push_back({bytes, on_line(static_cast<double>(bytes))});
  const Curve curves[] = {
      {"points in any order", {{4000, 8e-3}, {1000, 1e-3}, {2000, 5e-3}}, {{1000, 1e-3}, {2000, 5e-3}, {4000, 8e-3}}},
      {"latency and bandwidth", line, all_on_line({2000, 100e3, 200e3, 800e3, 5e6})},
      {"and that line beyond its ends", line, all_on_line({0, 1 << 28})},
      {"measurements that fall", {{100, 4e-3}, {400, 1e-3}, {1600, 2e-3}}, {{200, 3e-3}}},
      {"2 ms per 1000 bytes from the last two points", {{1000, 1e-3}, {2000, 2e-3}, {3000, 4e-3}}, {{5000, 8e-3}}},
      {"below the smallest", {{1000, 3e-3}, {2000, 4e-3}}, {{0, 2e-3}, {500, 2.5e-3}}},
      {"a tenth of 1 ms per 2000 bytes where the last segment falls", {{1000, 3e-3}, {2000, 1e-3}}, {{22000, 2e-3}}},
      {"a tenth of the first time where the first segment is steep", {{1000, 1e-3}, {2000, 5e-3}}, {{0, 0.1e-3}, {500, 0.55e-3}}},
      {"the first time where the first segment falls", {{1000, 3e-3}, {2000, 1e-3}}, {{0, 3e-3}}},
      {"one point is constant below and proportional above", {{1000, 1e-3}}, {{10, 1e-3}, {3000, 3e-3}}},
      {"repeated sizes have their median", {{1000, 1e-3}, {1000, 9e-3}, {1000, 2e-3}, {2000, 4e-3}}, {{1000, 2e-3}, {2000, 4e-3}}},
  };
  for (const auto& [what, points, expected] : curves) {
    const CostCurve curve(points);
    for (const auto& [bytes, seconds] : expected) EXPECT_NEAR(curve(bytes) / seconds, 1, 1e-12) << what << ", " << bytes << " bytes";
  }
}

// Noise: the time of the last size but one is that of the last.
TEST(CostCurve, AFlatLastSegmentMakesNoLargerAllReduceFree) {
  const CostCurve noisy({{1 << 20, 1e-3}, {1 << 22, 4e-3}, {1 << 24, 16e-3}, {1 << 26, 64e-3}, {1 << 28, 64e-3}});
  EXPECT_GT(noisy(1 << 30), 1.5 * 64e-3);
}

TEST(CostCurve, RejectsPointsThatAreNoMeasurements) {
  EXPECT_EQ(error_of([] { CostCurve({}); }), "a cost curve has no points; expected at least one measured size");
  EXPECT_EQ(error_of([] { CostCurve({{0, 1}}); }), "a cost curve has a point at 0 bytes; expected at least 1");
  EXPECT_EQ(error_of([] { CostCurve({{8, 0}}); }), "a cost curve takes 0 s at 8 bytes; expected more than 0");
  EXPECT_THROW(CostCurve({{8, std::nan("")}}), InputError);
  EXPECT_THROW(CostCurve({{8, std::numeric_limits<double>::infinity()}}), InputError);
}

TEST(FitAlphaBeta, RecoversALineExactly) {
  const AlphaBeta fit = fit_alpha_beta({{1 << 10, 10e-6 + 1024e-9}, {1 << 20, 10e-6 + 1048576e-9}, {1 << 30, 10e-6 + 1073741824e-9}});
  EXPECT_NEAR(fit.alpha_s, 10e-6, 1e-15);
  EXPECT_NEAR(fit.beta_s_per_byte, 1e-9, 1e-18);
  EXPECT_NEAR(fit.median_relative_error, 0, 1e-9);
}

TEST(FitAlphaBeta, WeighsErrorsRelativeToTheTime) {
  // Two sizes of equal relative importance: 1 s apart at the large one must not drown the small one.
  const AlphaBeta fit = fit_alpha_beta({{1, 1e-3}, {1, 1e-3}, {1000000000, 10}, {1000000000, 11}});
  EXPECT_NEAR(fit.alpha_s, 1e-3, 1e-7);
  // The weighted mean of 10 and 11 with weights 1/10^2 and 1/11^2, under sum((y - t)^2 / t^2): (1/10 + 1/11) / (1/100 + 1/121).
  EXPECT_NEAR(fit.beta_s_per_byte * 1e9, (1. / 10 + 1. / 11) / (1. / 100 + 1. / 121), 1e-2);
}

TEST(FitAlphaBeta, NeverReportsANegativeLatencyOrBandwidth) {
  EXPECT_EQ(fit_alpha_beta({{1000, 1e-3}, {2000, 3e-3}}).alpha_s, 0);
  const AlphaBeta falling = fit_alpha_beta({{1000, 3e-3}, {2000, 1e-3}});
  EXPECT_EQ(falling.beta_s_per_byte, 0);
  // Constant c minimising (c/3 - 1)^2 + (c/1 - 1)^2 in ms: (1/3 + 1) / (1/9 + 1) = 1.2.
  EXPECT_NEAR(falling.alpha_s, 1.2e-3, 1e-12);
}

TEST(FitAlphaBeta, OfOneSizeIsProportional) {
  const AlphaBeta fit = fit_alpha_beta({{1000, 1e-3}});
  EXPECT_EQ(fit.alpha_s, 0);
  EXPECT_DOUBLE_EQ(fit.beta_s_per_byte, 1e-6);
}

}  // namespace
}  // namespace firkin
