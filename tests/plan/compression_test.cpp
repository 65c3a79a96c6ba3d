#include "firkin/plan/cost_curve.h"

#include <gtest/gtest.h>

#include "firkin/base/units.h"
#include "helpers.h"

namespace firkin {
namespace {

TEST(Compression, Bf16HalvesTheBytesAndAddsTheConversion) {
  const CommCosts costs = {linear_curve(1, 0.25), linear_curve(0.5, 0.25)};
  const CommCosts bf16 = compressed(costs, find_compression("bf16", 0.0625));
  EXPECT_DOUBLE_EQ(bf16.isolated(80), 1 + 40 * 0.25 + 80 * 0.0625);
  EXPECT_DOUBLE_EQ(bf16.gap(80), 0.5 + 40 * 0.25 + 80 * 0.0625);
}

TEST(Compression, NoneChangesNothing) {
  const CommCosts costs = {CostCurve({{kKiB, 1e-4}, {kMiB, 3e-3}, {8 * kMiB, 2e-2}}), linear_curve(0.5, 0.25)};
  const CommCosts none = compressed(costs, find_compression("none", 1));
  for (const double bytes : {1e2, 5e4, 3e6, 1e8}) EXPECT_DOUBLE_EQ(none.isolated(bytes), costs.isolated(bytes));
}

TEST(Compression, OfAnotherNameOrANegativeTimeIsRejected) {
  EXPECT_EQ(error_of([] { find_compression("fp8", 0); }), "unknown hook 'fp8'; expected one of none, bf16");
  EXPECT_EQ(error_of([] { find_compression("bf16", -1); }), "the time to convert a byte is -1; expected at least 0");
}

}  // namespace
}  // namespace firkin
