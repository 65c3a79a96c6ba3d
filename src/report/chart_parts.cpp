#include "chart_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "palette.h"

namespace firkin {

using nlohmann::json;

namespace {

json axis_config() {
  return {{"labelColor", chart_colour("muted")},
          {"titleColor", chart_colour("ink")},
          {"gridColor", chart_colour("grid")},
          {"domainColor", chart_colour("muted")},
          {"tickColor", chart_colour("muted")},
          {"labelFontSize", kSmallLabelSize},
          {"titleFontSize", kLabelSize},
          {"titleFontWeight", "normal"},
          {"titlePadding", 8},
          {"labelOverlap", "greedy"},
          {"labelSeparation", 6},
          {"labelFlush", false}};
}

json legend_config(int columns) {
  return {{"orient", "top"},
          {"title", nullptr},
          {"labelColor", chart_colour("ink")},
          {"labelFontSize", kLabelSize},
          {"columns", columns},
          {"labelLimit", 320},
          {"symbolSize", 70},
          {"symbolStrokeWidth", 2},
          {"columnPadding", 12},
          {"rowPadding", 4},
          {"offset", 10}};
}

}  // namespace

json chart_frame(int height, int key_columns) {
  const json config = {{"font", "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"},
                       {"axis", axis_config()},
                       {"legend", legend_config(key_columns)},
                       {"view", {{"stroke", nullptr}}},
                       {"text", {{"fontSize", kLabelSize}, {"color", chart_colour("ink")}}},
                       {"aria", false}};  // the page's element carries one label for the whole chart
  return {{"$schema", "https://vega.github.io/schema/vega-lite/v6.json"},
          {"width", "container"},
          {"height", height},
          {"padding", {{"left", 2}, {"top", 2}, {"right", 6}, {"bottom", 2}}},
          {"autosize", {{"type", "fit-x"}, {"contains", "padding"}}},
          {"background", nullptr},
          {"config", config}};
}

json inline_data(json rows) {
  return {{"values", std::move(rows)}};
}

json key_encoding(const std::vector<KeyEntry>& entries) {
  json names = json::array(), shapes = json::array(), strokes = json::array(), fills = json::array();
  for (const KeyEntry& entry : entries) {
    names.push_back(entry.name);
    shapes.push_back(entry.shape);
    strokes.push_back(chart_colour(entry.stroke));
    fills.push_back(chart_colour(entry.fill));
  }
  const auto channel = [&names](const json& range) {
    return json{{"field", "kind"}, {"type", "nominal"}, {"title", nullptr}, {"scale", {{"domain", names}, {"range", range}}}};
  };
  return {{"shape", channel(shapes)}, {"stroke", channel(strokes)}, {"fill", channel(fills)}};
}

json named_rows(const std::string& field, const std::vector<std::string>& names, double padding) {
  return {{"field", field},
          {"type", "nominal"},
          {"sort", names},
          {"scale", {{"paddingInner", padding}, {"paddingOuter", 0.3}}},
          {"axis",
           {{"title", nullptr},
            {"labelColor", chart_colour("ink")},
            {"labelFontSize", kLabelSize},
            {"labelLimit", 150},
            {"ticks", false},
            {"domain", false},
            {"labelPadding", 8},
            {"labelOverlap", false}}}};
}

std::vector<double> power_of_two_ticks(double low, double high, size_t most) {
  constexpr double kSlack = 1e-9;  // a limit that is a power of two counts as reached
  const int first = static_cast<int>(std::ceil(std::log2(low) - kSlack));
  const int last = static_cast<int>(std::floor(std::log2(high) + kSlack));
  std::vector<double> ticks;
  if (last < first || most == 0) return ticks;
  const int step = (last - first) / static_cast<int>(most) + 1;
  // Multiples of the step, so that charts of similar ranges share their ticks.
  for (int power = first + ((-first % step) + step) % step; power <= last; power += step) ticks.push_back(std::exp2(power));
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  constexpr double kSlack = 1e-9;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const bool wide = high / low > 100;
  std::vector<double> ticks;
  for (int power = first; power <= last; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      if ((factor == 1 || !wide) && tick >= low * (1 - kSlack) && tick <= high * (1 + kSlack)) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string bytes_label_expression() {
  return "datum.value < 1024 ? format(datum.value, '~g') + ' B' : datum.value < 1048576 ? format(datum.value / 1024, '~g') + ' KiB' : "
         "datum.value < 1073741824 ? format(datum.value / 1048576, '~g') + ' MiB' : format(datum.value / 1073741824, '~g') + ' GiB'";
}

std::string seconds_label_expression() {
  return "datum.value < 0.0009995 ? format(datum.value * 1e6, '.3~r') + ' µs' : datum.value < 0.9995 ? "
         "format(datum.value * 1e3, '.3~r') + ' ms' : format(datum.value, '.3~r') + ' s'";
}

std::vector<double> spread_apart(const std::vector<double>& wanted, double gap, double low, double high) {
  std::vector<size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&wanted](size_t a, size_t b) { return wanted[a] < wanted[b]; });
  // Up: each at least a gap above its neighbour. Down again: none beyond `high`.
  std::vector<double> up(wanted.size()), placed(wanted.size());
  double floor = low;
  for (const size_t i : order) {
    up[i] = std::max(wanted[i], floor);
    floor = up[i] + gap;
  }
  double ceiling = high;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    placed[*it] = std::min(up[*it], ceiling);
    ceiling = placed[*it] - gap;
  }
  return placed;
}

}  // namespace firkin
