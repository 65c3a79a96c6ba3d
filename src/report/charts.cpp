#include "report/charts.h"

#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "firkin/stats/summary.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

std::optional<double> median_of(const std::vector<double>& seconds) {
  if (seconds.empty()) return std::nullopt;
  return median(seconds);
}

std::optional<Chart> layers_of(const Results& results) {
  if (!results.layers) return std::nullopt;
  std::vector<LayerBar> bars;
  for (const LayerRow& layer : results.layers->layers) {
    bars.push_back({layer.name, median_of(layer.forward_s), median_of(layer.backward_s).value_or(0)});
  }
  return layers_chart(bars);
}

// What tells the configurations of a run apart: without the model's name where all have the same.
std::string short_name(const std::vector<StepConfiguration>& all, const ModelDescription& model) {
  const bool one_model = std::ranges::all_of(all, [&model](const auto& other) { return other.model.name == model.name; });
  if (!one_model || !model.batch_size || !model.sequence_length) return name_of(model);
  return fmt::format("batch {}, sequence {}", *model.batch_size, *model.sequence_length);
}

std::optional<Chart> step_matrix_of(const Results& results) {
  std::vector<StepDot> dots;
  for (const StepConfiguration& configuration : results.configurations) {
    const std::string name = short_name(results.configurations, configuration.model);
    if (configuration.strategies.empty()) dots.push_back({name, "", {}, {}, configuration.status});
    for (const StrategyRow& row : configuration.strategies) {
      const std::string setting = row.cap_mib ? fmt::format("{} {} MiB", row.strategy, display_cap(*row.cap_mib)) : row.strategy;
      dots.push_back({name, setting, row.measured_s, row.measured_ci_s, ""});
    }
  }
  if (dots.empty()) return std::nullopt;
  return step_matrix_chart(dots);
}

std::optional<Chart> ratios_of(const Results& results) {
  if (!results.comparison || results.comparison->settings.empty()) return std::nullopt;
  return ratios_chart(results.comparison->settings);
}

}  // namespace

std::vector<Chart> charts_for(const Results& results) {
  if (results.prediction) return prediction_charts(*results.prediction);
  std::vector<Chart> charts;
  for (const auto& build : {loss_chart, pace_chart, curve_chart, step_matrix_of, ratios_of, allreduce_chart, chunks_chart, layers_of,
                            ready_chart, timeline_chart, strategy_chart}) {
    if (auto chart = build(results)) charts.push_back(std::move(*chart));
  }
  return charts;
}

nlohmann::json standalone_spec(const Chart& chart) {
  constexpr int kWidth = 820;
  constexpr int kMargin = 14;
  nlohmann::json spec = chart.spec;
  spec["title"] = {{"text", chart.title}, {"anchor", "start"}, {"color", chart_colour("ink")}, {"fontSize", 15}, {"offset", 12}};
  spec["width"] = kWidth;
  spec["autosize"]["type"] = "fit-x";
  spec["background"] = chart_colour("surface");
  for (auto& side : spec["padding"]) side = side.get<int>() + kMargin;
  spec["config"]["font"] = "DejaVu Sans, sans-serif";
  return with_light_colours(std::move(spec));
}

}  // namespace firkin
