// The charts of `firkin predict`: T(b), and how the best cap moves with the inputs.
#include <algorithm>

#include "chart_builders.h"
#include "firkin/base/units.h"
#include "report/sensitivity_page.h"

namespace firkin {

std::vector<Chart> prediction_charts(const Prediction& prediction) {
  Results drawn;
  for (const PredictedBucketing& row : prediction.curve) {
    CurveRow& point = drawn.curve.emplace_back();
    point.cap_mib = mib(row.cap_bytes.value_or(0));
    point.buckets = row.buckets;
    point.predicted_s = row.backward_s;
  }
  std::ranges::stable_sort(drawn.curve, {}, &CurveRow::cap_mib);
  std::vector<Chart> charts;
  if (auto chart = curve_chart(drawn)) {
    chart->title = "Backward time over bucket size: predicted";
    charts.push_back(std::move(*chart));
  }
  if (!prediction.sensitivity) return charts;
  for (Chart& chart : sensitivity_charts({prediction.sensitivity->points, prediction.sensitivity->map})) charts.push_back(std::move(chart));
  return charts;
}

}  // namespace firkin
