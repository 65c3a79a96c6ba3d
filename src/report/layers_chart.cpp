// The time of each layer, forward and backward.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {

std::optional<Chart> layers_chart(const std::vector<LayerBar>& layers) {
  constexpr size_t kMany = 60;  // layers; more of them are drawn in thinner rows, and some names are left out
  if (layers.empty()) return std::nullopt;
  const auto time_of = [](const LayerBar& row) { return row.forward_s.value_or(0) + row.backward_s; };
  nlohmann::json rows = nlohmann::json::array();
  bool has_forward = false;
  for (const LayerBar& row : layers) {
    rows.push_back({{"layer", row.name}, {"backward", row.backward_s}, {"backward_text", display_seconds(row.backward_s)}});
    if (!row.forward_s) continue;
    has_forward = true;
    rows.back().update({{"forward", *row.forward_s}, {"forward_text", display_seconds(*row.forward_s)}});
  }
  const LayerBar& longest = *std::ranges::max_element(layers, {}, time_of);
  Chart chart;
  chart.id = "layers";
  chart.title = has_forward ? "Time of each layer: forward and backward" : "Time of each layer: backward";
  chart.caption = "Medians over steps, in the order of the forward pass. Backward takes the layers from the last to the first.";
  chart.summary =
      fmt::format("Times of {} layers; the longest is {} at {}.", layers.size(), longest.name, display_seconds(time_of(longest)));
  chart.spec = filled_chart("layers", {{"layers", rows}});
  if (layers.size() > kMany) chart.spec["height"]["step"] = 8;
  return chart;
}

}  // namespace firkin
