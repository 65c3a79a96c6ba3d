#include "firkin/plan/compression.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {
namespace {

CostCurve compressed_curve(const CostCurve& curve, const Compression& compression) {
  std::vector<CostPoint> points;
  for (const CostPoint& point : curve.points()) {
    const double bytes = std::round(static_cast<double>(point.bytes) / compression.wire_fraction);
    points.push_back({static_cast<int64_t>(bytes), point.seconds + bytes * compression.conversion_s_per_byte});
  }
  return CostCurve(std::move(points));
}

}  // namespace

Compression find_compression(const std::string& name, double conversion_s_per_byte) {
  if (!std::isfinite(conversion_s_per_byte) || conversion_s_per_byte < 0) {
    throw InputError(fmt::format("the time to convert a byte is {}; expected at least 0", conversion_s_per_byte));
  }
  if (name == kNoHook) return {.name = name};
  if (name == kBf16Hook) return {.name = name, .wire_fraction = 0.5, .conversion_s_per_byte = conversion_s_per_byte};
  throw InputError(fmt::format("unknown hook '{}'; expected one of {}, {}", name, kNoHook, kBf16Hook));
}

CommCosts compressed(const CommCosts& costs, const Compression& compression) {
  return {compressed_curve(costs.isolated, compression), compressed_curve(costs.gap, compression)};
}

}  // namespace firkin
