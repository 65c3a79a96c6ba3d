// The charts of `firkin tune` and `firkin predict` over bucket size.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/units.h"
#include "firkin/plan/uncertainty.h"
#include "report/charts.h"
#include "report/words.h"

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
    if (!row.measured_ci_s || !std::isfinite(row.measured_ci_s->high)) continue;  // too few samples for an upper end
    range.include(row.measured_ci_s->low);
    range.include(row.measured_ci_s->high);
  }
  return range;
}

// A time axis with room above the data for the label of the cap to use.
void set_time_axis(json& spec, CurveRange times, const std::string& title) {
  constexpr double kMargin = 0.05;    // as a share of the axis
  constexpr double kHeadroom = 0.07;  // as a share of the axis
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
    json& point = points.emplace_back(json{{"cap_mib", short_mib(row.cap_bytes)}, {"time_s", *row.predicted_s}});
    if (row.predicted_range_s) point.update({{"low", row.predicted_range_s->low}, {"high", row.predicted_range_s->high}});
  }
  return points;
}

json measured_points(const Results& results) {
  json points = json::array();
  for (const CurveRow& row : results.curve) {
    if (!row.measured_s) continue;
    json point = {{"cap_mib", short_mib(row.cap_bytes)},
                  {"cap", cap_with_unit(row.cap_bytes)},
                  {"time_s", *row.measured_s},
                  {"measured", display_seconds(*row.measured_s)},
                  {"kind", results.decision && is_tied(results, row.cap_bytes) ? "measured, not told apart from the best" : "measured"}};
    point["buckets"] = row.buckets ? json(*row.buckets) : json("–");
    point["predicted"] = row.predicted_s ? display_seconds(*row.predicted_s) : "–";
    add_interval(point, row.measured_ci_s);
    points.push_back(std::move(point));
  }
  return points;
}

// The one cap that is marked: by a line down from its label, and a ring at `time_s`.
json marked(const std::string& name, int64_t cap_bytes, double time_s) {
  const json mark = {
      {"cap_mib", short_mib(cap_bytes)}, {"time_s", time_s}, {"label", fmt::format("{}: {}", name, cap_with_unit(cap_bytes))}};
  return json::array({mark});
}

// The strategies without a cap. One too far from the curve would flatten it and is put into words instead.
struct Levels {
  json lines = json::array();
  std::vector<std::string> beyond;
};

Levels place_levels(const std::vector<StrategyRow>& strategies, CurveRange& times) {
  constexpr double kFarthest = 1.5;    // spans of the curve
  constexpr double kLeastSpan = 0.08;  // as a share of the largest time
  const CurveRange curve = times;
  const double reach = kFarthest * std::max(curve.span(), kLeastSpan * curve.high);
  Levels levels;
  for (const StrategyRow& row : strategies) {
    if (row.strategy == "bucketed" || row.strategy == name_of(SettingKind::kChosenCap)) continue;  // the curve itself
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

std::string curve_summary(const std::vector<CurveRow>& rows, const Results& results) {
  std::string text =
      fmt::format("Step time over bucket caps from {} to {}.", display_cap(rows.front().cap_bytes), cap_with_unit(rows.back().cap_bytes));
  if (!results.decision) return text;
  return text + fmt::format(" Chosen: {}, predicted at {}. Measured best: {} at {}.", cap_with_unit(results.decision->cap_bytes),
                            display_seconds(results.decision->predicted_s), cap_with_unit(results.best_measured->cap_bytes),
                            display_seconds(*results.best_measured->measured_s));
}

// How far the prediction was off; empty unless caps were both predicted and measured.
std::string error_text(const std::vector<CurveRow>& curve) {
  std::vector<double> errors;
  for (const CurveRow& row : curve) {
    if (row.predicted_s && row.measured_s) errors.push_back(std::abs(*row.predicted_s / *row.measured_s - 1));
  }
  if (errors.empty()) return "";
  return fmt::format(" Prediction error: {} in the median of {} caps, {} at worst.", display_percent(median(errors)), errors.size(),
                     display_percent(std::ranges::max(errors)));
}

std::string curve_caption(const Levels& levels, bool has_measured, bool has_range) {
  std::string text = has_measured ? "Line: the model's prediction. Points: medians of real steps with 95 % intervals; filled points are "
                                    "not told apart from the one measured best."
                                  : "The model's prediction.";
  if (has_range) text += fmt::format(" Band: the interval of the prediction. {}", kRangeHeld);
  if (!levels.lines.empty()) text += " Dashed: the strategies that have no cap, as measured.";
  if (!levels.beyond.empty()) text += fmt::format(" Outside this axis: {}.", fmt::join(levels.beyond, ", "));
  return text;
}

}  // namespace

std::optional<Chart> curve_chart(const Results& results) {
  CurveRange times = times_of(results.curve, times_of(results.dense_curve));
  if (times.high == 0) return std::nullopt;
  const std::vector<CurveRow>& line = results.dense_curve.empty() ? results.curve : results.dense_curve;
  const json measured = measured_points(results);
  const Levels levels = place_levels(results.strategies, times);
  const json best = results.decision ? marked("chosen", results.decision->cap_bytes, results.decision->predicted_s) : json::array();
  json spec =
      filled_chart("curve", {{"predicted", predicted_points(line)}, {"measured", measured}, {"levels", levels.lines}, {"best", best}});
  set_time_axis(spec, times, "step time");
  if (measured.empty()) set_param(spec, "key", {"predicted"});
  return Chart{"curve", std::string("Step time over bucket size: predicted") + (measured.empty() ? "" : " and measured"),
               curve_caption(levels, !measured.empty(), line.front().predicted_range_s.has_value()) + error_text(results.curve),
               curve_summary(line, results), std::move(spec)};
}

std::optional<Chart> predicted_chart(const Results& results) {
  if (!results.prediction) return std::nullopt;
  const Prediction& prediction = *results.prediction;
  const auto drawn = [](const PredictedCap& row) {
    return CurveRow{.cap_bytes = row.cap_bytes, .buckets = row.buckets, .predicted_s = row.time_s};
  };
  const CurveRow best = drawn(prediction.best_uniform);
  const double plan_s = prediction.best_plan.backward_s;
  std::vector<CurveRow> curve = {best};
  for (const PredictedCap& row : prediction.curve) curve.push_back(drawn(row));
  std::ranges::stable_sort(curve, {}, &CurveRow::cap_bytes);
  CurveRange times = times_of(curve);
  times.include(plan_s);
  json spec = filled_chart("curve", {{"predicted", predicted_points(curve)},
                                     {"measured", json::array()},
                                     {"levels", {{{"strategy", "best plan"}, {"time_s", plan_s}, {"measured", display_seconds(plan_s)}}}},
                                     {"best", marked("predicted best", best.cap_bytes, *best.predicted_s)}});
  set_time_axis(spec, times, "backward, with communication");
  set_param(spec, "key", {"predicted"});
  return Chart{
      "predicted", "Backward time over bucket size: predicted",
      "From the start of backward to the last gradient, with the cap of every bucket. Dashed: the best plan, whose buckets differ in size.",
      fmt::format("Predicted backward time over bucket caps from {} to {}; least {} at {}.", display_cap(curve.front().cap_bytes),
                  cap_with_unit(curve.back().cap_bytes), display_seconds(*best.predicted_s), cap_with_unit(best.cap_bytes)),
      std::move(spec)};
}

}  // namespace firkin
