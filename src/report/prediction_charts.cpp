// The charts of `firkin predict`: T(b), and how the best cap moves with the inputs.
#include <algorithm>

#include "chart_builders.h"
#include "firkin/base/units.h"
#include "report/sensitivity_page.h"

namespace firkin {
namespace {

CurveRow drawn_row(const PredictedBucketing& row) {
  CurveRow drawn;
  drawn.cap_mib = mib(row.cap_bytes.value_or(0));
  drawn.buckets = row.buckets;
  drawn.predicted_s = row.backward_s;
  return drawn;
}

}  // namespace

std::vector<Chart> prediction_charts(const Prediction& prediction) {
  std::vector<CurveRow> curve = {drawn_row(prediction.best_uniform)};
  for (const PredictedBucketing& row : prediction.curve) curve.push_back(drawn_row(row));
  std::ranges::stable_sort(curve, {}, &CurveRow::cap_mib);
  std::vector<Chart> charts;
  if (auto chart = predicted_chart(curve, drawn_row(prediction.best_uniform), prediction.best_plan.backward_s))
    charts.push_back(std::move(*chart));
  if (!prediction.sensitivity) return charts;
  for (Chart& chart : sensitivity_charts({prediction.sensitivity->points, prediction.sensitivity->map})) charts.push_back(std::move(chart));
  return charts;
}

}  // namespace firkin
