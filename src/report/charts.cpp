#include "report/charts.h"

#include "chart_builders.h"
#include "palette.h"

namespace firkin {

std::vector<Chart> charts_for(const Results& results) {
  std::vector<Chart> charts;
  for (const auto& build : {curve_chart, allreduce_chart, chunks_chart, ready_chart, timeline_chart, strategy_chart}) {
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
