// Step time over bucket size: the predicted line, measured points with intervals, the other strategies as level lines, the two best caps.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

struct CurveRange {
  double low = HUGE_VAL;
  double high = 0;

  double span() const { return high - low; }
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

CurveRange times_of(const std::vector<CurveRow>& rows, CurveRange range = {}) {
  for (const CurveRow& row : rows) {
    if (row.predicted_s) range.include(*row.predicted_s);
    if (row.measured_s) range.include(*row.measured_s);
    if (!row.measured_ci_s) continue;
    range.include(row.measured_ci_s->low);
    range.include(row.measured_ci_s->high);
  }
  return range;
}

// A time axis with room above the data for the labels of the best caps.
void set_time_axis(json& spec, CurveRange times, const std::string& title) {
  constexpr double kMargin = 0.05;    // of the axis
  constexpr double kHeadroom = 0.13;  // of the axis
  const double margin = std::max(kMargin * times.span(), 0.002 * times.high);
  times.low = std::max(0.0, times.low - margin);
  times.high += margin;
  times.high += kHeadroom * times.span();
  json& y = spec["encoding"]["y"];
  y["scale"]["domain"] = {times.low, times.high};
  y["axis"]["title"] = title + (times.low > 0 ? " (the axis does not start at zero)" : "");
}

json predicted_points(const std::vector<CurveRow>& rows) {
  json points = json::array();
  for (const CurveRow& row : rows) {
    if (!row.predicted_s) continue;
    json& point = points.emplace_back(json{{"cap_mib", row.cap_mib}, {"time_s", *row.predicted_s}});
    if (row.predicted_range_s) point.update({{"low", row.predicted_range_s->low}, {"high", row.predicted_range_s->high}});
  }
  return points;
}

json measured_points(const Results& results) {
  json points = json::array();
  for (const CurveRow& row : results.curve) {
    if (!row.measured_s) continue;
    json point = {{"cap_mib", row.cap_mib},
                  {"cap", display_cap(row.cap_mib) + " MiB"},
                  {"time_s", *row.measured_s},
                  {"measured", display_seconds(*row.measured_s)},
                  {"kind", results.answer && is_tied(*results.answer, row.cap_mib) ? "measured, tied" : "measured"}};
    point["buckets"] = row.buckets ? json(*row.buckets) : json("–");
    point["predicted"] = row.predicted_s ? display_seconds(*row.predicted_s) : "–";
    add_interval(point, row.measured_ci_s);
    points.push_back(std::move(point));
  }
  return points;
}

json best_mark(const std::string& kind, const CurveRow& row, double time_s, int label_row) {
  return {{"kind", kind},
          {"cap_mib", row.cap_mib},
          {"time_s", time_s},
          {"row", label_row},
          {"label", fmt::format("{} best: {} MiB", kind, display_cap(row.cap_mib))}};
}

// Where both labels lie on the same side of their lines, the outer one's is written in the upper row, so that no line crosses a label.
json best_marks(const TuneAnswer& answer, const CurveRange& caps) {
  const double predicted = answer.best_predicted.cap_mib, measured = answer.best_measured.cap_mib;
  const bool both_right = std::min(predicted, measured) > std::sqrt(caps.low * caps.high);
  const bool prediction_first = predicted == measured || (predicted < measured) != both_right;
  json marks = {best_mark("measured", answer.best_measured, *answer.best_measured.measured_s, prediction_first ? 1 : 0),
                best_mark("predicted", answer.best_predicted, *answer.best_predicted.predicted_s, prediction_first ? 0 : 1)};
  if (predicted == measured) marks[0]["label"] = "measured best: the same";
  return marks;
}

// The strategies without a cap. One far from the curve would flatten the curve; it is put in words instead.
struct Levels {
  json lines = json::array();
  std::vector<std::string> beyond;
};

Levels place_levels(const std::vector<StrategyRow>& strategies, CurveRange& times) {
  constexpr double kFarthest = 1.5;    // spans of the curve
  constexpr double kLeastSpan = 0.08;  // of the largest time
  const CurveRange curve = times;
  const double reach = kFarthest * std::max(curve.span(), kLeastSpan * curve.high);
  Levels levels;
  for (const StrategyRow& row : strategies) {
    if (row.strategy == "bucketed" || row.strategy == kChosenCapName) continue;  // the curve itself
    const std::string time = display_seconds(row.measured_s);
    if (row.measured_s < curve.low - reach || row.measured_s > curve.high + reach) {
      levels.beyond.push_back(fmt::format("{} ({})", row.strategy, time));
      continue;
    }
    levels.lines.push_back({{"strategy", row.strategy}, {"time_s", row.measured_s}, {"measured", time}});
    times.include(row.measured_s);
  }
  return levels;
}

std::string curve_summary(const std::vector<CurveRow>& rows, const std::optional<TuneAnswer>& answer) {
  std::string text =
      fmt::format("Step time over bucket caps from {} to {} MiB.", display_cap(rows.front().cap_mib), display_cap(rows.back().cap_mib));
  if (!answer) return text;
  return text + fmt::format(" Predicted best: {} MiB at {}. Measured best: {} MiB at {}.", display_cap(answer->best_predicted.cap_mib),
                            display_seconds(*answer->best_predicted.predicted_s), display_cap(answer->best_measured.cap_mib),
                            display_seconds(*answer->best_measured.measured_s));
}

std::string curve_caption(const Levels& levels, bool has_measured, bool has_range) {
  std::string text = has_measured
                         ? "Line: the model's prediction. Points: medians of real steps with 95 % intervals; filled points are tied: "
                           "they cannot be told from the best."
                         : "The model's prediction.";
  if (has_range) text += " Band: so near to their predictions 95 % of the validation study's caps were measured.";
  if (!levels.lines.empty()) text += " Dashed: the strategies that have no cap, as measured.";
  if (!levels.beyond.empty()) text += fmt::format(" Outside this axis: {}.", fmt::join(levels.beyond, ", "));
  return text;
}

}  // namespace

std::optional<Chart> curve_chart(const Results& results) {
  CurveRange times = times_of(results.curve, times_of(results.dense_curve));
  if (times.high == 0) return std::nullopt;
  const std::vector<CurveRow>& line = results.dense_curve.empty() ? results.curve : results.dense_curve;
  CurveRange caps;
  for (const auto* rows : {&results.dense_curve, &results.curve}) {
    for (const CurveRow& row : *rows) caps.include(row.cap_mib);
  }
  const json measured = measured_points(results);
  const Levels levels = place_levels(results.strategies, times);
  Chart chart;
  chart.id = "curve";
  chart.title = measured.empty() ? "Step time over bucket size: predicted" : "Step time over bucket size: predicted and measured";
  chart.caption = curve_caption(levels, !measured.empty(), line.front().predicted_range_s.has_value());
  chart.summary = curve_summary(line, results.answer);
  chart.spec = filled_chart("curve", {{"predicted", predicted_points(line)},
                                      {"measured", measured},
                                      {"levels", levels.lines},
                                      {"best", results.answer ? best_marks(*results.answer, caps) : json::array()}});
  set_time_axis(chart.spec, times, "step time");
  if (measured.empty()) set_param(chart.spec, "key", {"predicted"});
  return chart;
}

std::optional<Chart> predicted_chart(const std::vector<CurveRow>& curve, const CurveRow& best, std::optional<double> best_plan_s) {
  CurveRange times = times_of(curve);
  if (times.high == 0) return std::nullopt;
  times.include(*best.predicted_s);
  json levels = json::array();
  if (best_plan_s) {
    levels.push_back({{"strategy", "best plan"}, {"time_s", *best_plan_s}, {"measured", display_seconds(*best_plan_s)}});
    times.include(*best_plan_s);
  }
  Chart chart;
  chart.id = "predicted";
  chart.title = "Backward time over bucket size: predicted";
  chart.caption = "From the start of backward to the last gradient, with the cap of every bucket.";
  if (best_plan_s) chart.caption += " Dashed: the best plan, whose buckets differ in size.";
  chart.summary =
      fmt::format("Predicted backward time over bucket caps from {} to {} MiB; least {} at {} MiB.", display_cap(curve.front().cap_mib),
                  display_cap(curve.back().cap_mib), display_seconds(*best.predicted_s), display_cap(best.cap_mib));
  chart.spec = filled_chart("curve", {{"predicted", predicted_points(curve)},
                                      {"measured", json::array()},
                                      {"levels", levels},
                                      {"best", json::array({best_mark("predicted", best, *best.predicted_s, 0)})}});
  set_time_axis(chart.spec, times, "backward, with communication");
  set_param(chart.spec, "key", {"predicted"});
  return chart;
}

}  // namespace firkin
