// When gradients become ready: bytes that could already travel, over the time of the backward pass.
#include <fmt/format.h>

#include "chart_builders.h"
#include "chart_parts.h"
#include "firkin/base/units.h"
#include "results/numbers.h"

namespace firkin {

std::optional<Chart> ready_chart(const Results& results) {
  if (!results.profile || results.profile->tensors.names.empty()) return std::nullopt;
  const TensorProfile& profile = results.profile->tensors;
  nlohmann::json tensors = nlohmann::json::array({{{"ready_s", 0}, {"mib", 0}}});  // at first nothing is ready
  int64_t total = 0;
  for (size_t i = 0; i < profile.names.size(); ++i) {
    total += profile.bytes[i];
    tensors.push_back({{"ready_s", profile.ready_s[i]},
                       {"ready", display_seconds(profile.ready_s[i])},
                       {"mib", mib(total)},
                       {"tensor", profile.names[i]},
                       {"size", format_bytes(profile.bytes[i])}});
  }
  Chart chart;
  chart.id = "ready";
  chart.title = "When gradients become ready";
  chart.caption =
      "One point per tensor. A bucket can start once its last gradient is ready; what is ready late can no longer hide behind backward.";
  if (results.profile->hook_perturbation) {
    chart.caption += fmt::format(" Taking these times changed backward by {}.", display_percent(*results.profile->hook_perturbation, true));
  }
  chart.summary =
      fmt::format("{} gradients, {} in all, become ready during a backward pass of {}; the last after {}.", profile.names.size(),
                  format_bytes(total), display_seconds(profile.backward_s), display_seconds(profile.ready_s.back()));
  const nlohmann::json end = {{"ready_s", profile.backward_s}, {"label", "end of backward"}};
  chart.spec = filled_chart("ready", {{"tensors", tensors}, {"end", nlohmann::json::array({end})}});
  return chart;
}

}  // namespace firkin
