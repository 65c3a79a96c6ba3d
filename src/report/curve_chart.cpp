// Step time over bucket size: the predicted line, measured points with intervals, the other strategies as level lines, the two best caps.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "chart_builders.h"
#include "chart_parts.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kCurveHeight = 400;
constexpr int kHeadroom = 46;  // pixels above the data, for the labels of the best caps
constexpr int kLabelGap = 15;  // pixels between the labels of neighbouring strategies
constexpr const char* kPredicted = "predicted";
constexpr const char* kMeasured = "measured";
constexpr const char* kTied = "measured, tied";

struct StepRange {
  double low = 0;
  double high = 0;

  double span() const { return high - low; }
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// The axes and what is drawn where.
struct Frame {
  StepRange caps;
  StepRange seconds;
  TimeUnit unit;
  std::vector<StrategyRow> levels;  // strategies within the axis
  std::vector<std::string> beyond;  // strategies too far away to be drawn
};

const std::vector<CurveRow>& line_rows(const Results& results) {
  return results.dense_curve.empty() ? results.curve : results.dense_curve;
}

StepRange curve_seconds(const Results& results) {
  StepRange range{HUGE_VAL, 0};
  for (const auto* rows : {&results.dense_curve, &results.curve}) {
    for (const CurveRow& row : *rows) {
      if (row.predicted_s) range.include(*row.predicted_s);
      if (row.measured_s) range.include(*row.measured_s);
      if (!row.measured_ci_s) continue;
      range.include(row.measured_ci_s->low);
      range.include(row.measured_ci_s->high);
    }
  }
  return range;
}

// A strategy far from the curve would flatten the curve; it is named in the caption instead.
Frame make_frame(const Results& results) {
  constexpr double kFarthest = 1.5;    // spans of the curve
  constexpr double kLeastSpan = 0.08;  // of the largest time
  constexpr double kMargin = 0.05;     // of the axis
  constexpr double kCapMargin = 1.12;  // factor
  Frame frame;
  frame.seconds = curve_seconds(results);
  const double reach = kFarthest * std::max(frame.seconds.span(), kLeastSpan * frame.seconds.high);
  const StepRange near{frame.seconds.low - reach, frame.seconds.high + reach};
  for (const StrategyRow& row : results.strategies) {
    if (row.strategy == "bucketed") continue;  // the curve itself
    if (row.measured_s < near.low || row.measured_s > near.high) {
      frame.beyond.push_back(fmt::format("{} ({})", row.strategy, display_seconds(row.measured_s)));
      continue;
    }
    frame.levels.push_back(row);
    frame.seconds.include(row.measured_s);
  }
  frame.unit = time_unit(frame.seconds.high);
  const double margin = std::max(kMargin * frame.seconds.span(), 0.002 * frame.seconds.high);
  frame.seconds.low = std::max(0.0, frame.seconds.low - margin);
  frame.seconds.high += margin;
  frame.seconds.high += frame.seconds.span() * kHeadroom / (kCurveHeight - kHeadroom);

  frame.caps = {HUGE_VAL, 0};
  for (const auto* rows : {&results.dense_curve, &results.curve}) {
    for (const CurveRow& row : *rows) frame.caps.include(row.cap_mib);
  }
  frame.caps = {frame.caps.low / kCapMargin, frame.caps.high * kCapMargin};
  return frame;
}

json cap_axis(const Frame& frame) {
  return {{"type", "quantitative"},
          {"scale", {{"type", "log"}, {"base", 2}, {"domain", {frame.caps.low, frame.caps.high}}, {"nice", false}}},
          {"axis",
           {{"title", "cap of a bucket (MiB, log scale)"},
            {"values", power_of_two_ticks(frame.caps.low, frame.caps.high, 14)},
            {"labelExpr", "format(datum.value, '~r')"},
            {"grid", false}}}};
}

json time_axis(const Frame& frame) {
  const bool from_zero = frame.seconds.low == 0;
  return {{"type", "quantitative"},
          {"scale", {{"domain", {frame.unit(frame.seconds.low), frame.unit(frame.seconds.high)}}, {"nice", false}, {"zero", false}}},
          {"axis",
           {{"title", fmt::format("step time ({}{})", frame.unit.symbol, from_zero ? "" : "; the axis does not start at zero")},
            {"tickCount", 7}}}};
}

json x_channel(const Frame& frame) {
  json channel = cap_axis(frame);
  channel["field"] = "cap";
  return channel;
}

json y_channel(const Frame& frame, const std::string& field) {
  json channel = time_axis(frame);
  channel["field"] = field;
  return channel;
}

double y_pixel(const Frame& frame, double seconds) {
  return kCurveHeight * (frame.seconds.high - seconds) / frame.seconds.span();
}

// The other strategies: a dashed line each, named to the right of the plot.
void add_levels(json& layers, const Frame& frame) {
  if (frame.levels.empty()) return;
  std::vector<double> wanted;
  for (const StrategyRow& row : frame.levels) wanted.push_back(y_pixel(frame, row.measured_s));
  const std::vector<double> placed = spread_apart(wanted, kLabelGap, 0, kCurveHeight - 2);
  json rows = json::array();
  for (size_t i = 0; i < frame.levels.size(); ++i) {
    const StrategyRow& row = frame.levels[i];
    rows.push_back({{"strategy", row.strategy},
                    {"time", frame.unit(row.measured_s)},
                    {"label_y", placed[i]},
                    {"measured", display_seconds(row.measured_s)}});
  }
  const json tooltip = {{{"field", "strategy"}, {"title", "strategy"}}, {{"field", "measured"}, {"title", "measured"}}};
  layers.push_back({{"data", inline_data(rows)},
                    {"mark", {{"type", "rule"}, {"strokeDash", {5, 4}}, {"color", chart_colour("muted")}, {"opacity", 0.8}}},
                    {"encoding", {{"y", y_channel(frame, "time")}, {"tooltip", tooltip}}}});
  layers.push_back({{"data", inline_data(rows)},
                    {"mark", {{"type", "text"}, {"align", "left"}, {"baseline", "middle"}, {"dx", 7}, {"color", chart_colour("muted")}}},
                    {"encoding",
                     {{"x", {{"value", "width"}}},
                      {"y", {{"field", "label_y"}, {"type", "quantitative"}, {"scale", nullptr}, {"axis", nullptr}}},
                      {"text", {{"field", "strategy"}}}}}});
}

void add_predicted_line(json& layers, const Results& results, const Frame& frame) {
  json rows = json::array();
  for (const CurveRow& row : line_rows(results)) {
    if (row.predicted_s) rows.push_back({{"cap", row.cap_mib}, {"time", frame.unit(*row.predicted_s)}});
  }
  if (rows.empty()) return;
  layers.push_back({{"data", inline_data(rows)},
                    {"mark", {{"type", "line"}, {"color", chart_colour("predicted")}, {"strokeWidth", 2.5}}},
                    {"encoding", {{"x", x_channel(frame)}, {"y", y_channel(frame, "time")}}}});
}

json measured_row(const Results& results, const CurveRow& row, const Frame& frame) {
  json json_row = {{"cap", row.cap_mib},
                   {"time", frame.unit(*row.measured_s)},
                   {"kind", results.answer && is_tied(*results.answer, row.cap_mib) ? kTied : kMeasured},
                   {"cap_text", display_cap(row.cap_mib) + " MiB"},
                   {"measured", display_seconds(*row.measured_s)}};
  if (row.buckets) json_row["buckets"] = *row.buckets;
  if (row.predicted_s) json_row["predicted"] = display_seconds(*row.predicted_s);
  if (!row.measured_ci_s) return json_row;
  json_row["low"] = frame.unit(row.measured_ci_s->low);
  json_row["high"] = frame.unit(row.measured_ci_s->high);
  json_row["interval"] = fmt::format("{} to {}", display_seconds(row.measured_ci_s->low), display_seconds(row.measured_ci_s->high));
  return json_row;
}

void add_measured_points(json& layers, const Results& results, const Frame& frame) {
  json rows = json::array();
  json with_interval = json::array();
  for (const CurveRow& row : results.curve) {
    if (!row.measured_s) continue;
    rows.push_back(measured_row(results, row, frame));
    if (row.measured_ci_s) with_interval.push_back(rows.back());
  }
  if (rows.empty()) return;
  layers.push_back({{"data", inline_data(with_interval)},
                    {"mark", {{"type", "rule"}, {"color", chart_colour("measured")}, {"strokeWidth", 1.5}}},
                    {"encoding", {{"x", x_channel(frame)}, {"y", y_channel(frame, "low")}, {"y2", {{"field", "high"}}}}}});
  for (const char* end : {"low", "high"}) {
    layers.push_back(
        {{"data", inline_data(with_interval)},
         {"mark", {{"type", "tick"}, {"orient", "horizontal"}, {"size", 9}, {"thickness", 1.5}, {"color", chart_colour("measured")}}},
         {"encoding", {{"x", x_channel(frame)}, {"y", y_channel(frame, end)}}}});
  }
  json encoding = key_encoding({{kPredicted, "stroke", "predicted", "predicted"},
                                {kMeasured, "circle", "measured", "surface"},
                                {kTied, "circle", "measured", "measured"}});
  encoding["x"] = x_channel(frame);
  encoding["y"] = y_channel(frame, "time");
  encoding["tooltip"] = {{{"field", "cap_text"}, {"title", "cap"}},
                         {{"field", "buckets"}, {"title", "buckets"}, {"type", "quantitative"}},
                         {{"field", "predicted"}, {"title", "predicted"}},
                         {{"field", "measured"}, {"title", "measured"}},
                         {{"field", "interval"}, {"title", "95 % interval"}}};
  layers.push_back({{"data", inline_data(rows)},
                    {"mark", {{"type", "point"}, {"size", 75}, {"strokeWidth", 2}, {"opacity", 1}}},
                    {"encoding", encoding}});
}

// The mark of one best cap: a vertical line down from its label, and a ring around its point.
struct BestMark {
  double cap_mib;
  double seconds;
  std::string label;
  std::string role;
};

void add_best_mark(json& layers, const Frame& frame, const BestMark& best, int row) {
  constexpr int kRowHeight = 19;
  const int label_y = 8 + row * kRowHeight;
  const double position = std::log(best.cap_mib / frame.caps.low) / std::log(frame.caps.high / frame.caps.low);
  const bool to_the_left = position > 0.5;
  const json data = inline_data(json::array({{{"cap", best.cap_mib}, {"time", frame.unit(best.seconds)}, {"label", best.label}}}));
  const json x = x_channel(frame);
  layers.push_back({{"data", data},
                    {"mark", {{"type", "rule"}, {"color", chart_colour(best.role)}, {"strokeDash", {2, 3}}, {"strokeWidth", 1.5}}},
                    {"encoding", {{"x", x}, {"y", {{"value", label_y - 6}}}, {"y2", {{"value", kCurveHeight}}}}}});
  layers.push_back(
      {{"data", data},
       {"mark",
        {{"type", "point"}, {"size", 330}, {"strokeWidth", 2}, {"filled", false}, {"color", chart_colour(best.role)}, {"opacity", 1}}},
       {"encoding", {{"x", x}, {"y", y_channel(frame, "time")}}}});
  json text = {{"type", "text"},    {"align", to_the_left ? "right" : "left"}, {"baseline", "middle"}, {"dx", to_the_left ? -6 : 6},
               {"fontWeight", 600}, {"color", chart_colour(best.role)}};
  const json encoding = {{"x", x}, {"y", {{"value", label_y}}}, {"text", {{"field", "label"}}}};
  json halo = text;  // hides another mark's line behind the label
  halo["color"] = chart_colour("surface");
  halo["stroke"] = chart_colour("surface");
  halo["strokeWidth"] = 5;
  layers.push_back({{"data", data}, {"mark", halo}, {"encoding", encoding}});
  layers.push_back({{"data", data}, {"mark", text}, {"encoding", encoding}});
}

// Where both labels lie on the same side of their lines, the outer one's is written in the upper row, so that no line crosses a label.
void add_best_marks(json& layers, const Results& results, const Frame& frame) {
  if (!results.answer) return;
  const CurveRow& predicted = results.answer->best_predicted;
  const CurveRow& measured = results.answer->best_measured;
  if (predicted.cap_mib == measured.cap_mib) {
    add_best_mark(layers, frame, {measured.cap_mib, *measured.measured_s, "measured best: the same", "measured"}, 1);
    add_best_mark(
        layers, frame,
        {predicted.cap_mib, *predicted.predicted_s, fmt::format("predicted best: {} MiB", display_cap(predicted.cap_mib)), "predicted"}, 0);
    return;
  }
  const BestMark of_prediction{predicted.cap_mib, *predicted.predicted_s,
                               fmt::format("predicted best: {} MiB", display_cap(predicted.cap_mib)), "predicted"};
  const BestMark of_measurement{measured.cap_mib, *measured.measured_s, fmt::format("measured best: {} MiB", display_cap(measured.cap_mib)),
                                "measured"};
  const double middle = std::sqrt(frame.caps.low * frame.caps.high);
  const bool both_right = std::min(predicted.cap_mib, measured.cap_mib) > middle;
  const bool prediction_first = (predicted.cap_mib < measured.cap_mib) != both_right;
  add_best_mark(layers, frame, of_prediction, prediction_first ? 0 : 1);
  add_best_mark(layers, frame, of_measurement, prediction_first ? 1 : 0);
}

std::string curve_summary(const Results& results) {
  const std::vector<CurveRow>& rows = line_rows(results);
  std::string text =
      fmt::format("Step time over bucket caps from {} to {} MiB.", display_cap(rows.front().cap_mib), display_cap(rows.back().cap_mib));
  if (results.answer) {
    const TuneAnswer& answer = *results.answer;
    text += fmt::format(" Predicted best: {} MiB at {}. Measured best: {} MiB at {}.", display_cap(answer.best_predicted.cap_mib),
                        display_seconds(*answer.best_predicted.predicted_s), display_cap(answer.best_measured.cap_mib),
                        display_seconds(*answer.best_measured.measured_s));
  }
  return text;
}

std::string curve_caption(const Frame& frame, bool has_measured) {
  std::string text = has_measured
                         ? "Line: the model's prediction. Points: medians of real steps with 95 % intervals; filled points are tied: "
                           "they cannot be told from the best."
                         : "The model's prediction.";
  if (!frame.levels.empty()) text += " Dashed: the strategies that have no cap, as measured.";
  if (!frame.beyond.empty()) text += fmt::format(" Outside this axis: {}.", fmt::join(frame.beyond, ", "));
  return text;
}

}  // namespace

std::optional<Chart> curve_chart(const Results& results) {
  const auto has_time = [](const CurveRow& row) { return row.predicted_s || row.measured_s; };
  if (std::ranges::none_of(results.curve, has_time) && std::ranges::none_of(results.dense_curve, has_time)) return std::nullopt;
  const bool has_measured = std::ranges::any_of(results.curve, [](const CurveRow& row) { return row.measured_s.has_value(); });
  const Frame frame = make_frame(results);
  json layers = json::array();
  add_levels(layers, frame);
  add_predicted_line(layers, results, frame);
  add_measured_points(layers, results, frame);
  add_best_marks(layers, results, frame);
  Chart chart;
  chart.id = "curve";
  chart.title = has_measured ? "Step time over bucket size: predicted and measured" : "Step time over bucket size: predicted";
  chart.caption = curve_caption(frame, has_measured);
  chart.summary = curve_summary(results);
  chart.spec = chart_frame(kCurveHeight, 2);
  chart.spec["layer"] = layers;
  return chart;
}

}  // namespace firkin
