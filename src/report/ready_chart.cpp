// When gradients become ready: bytes that could already travel, over the time of the backward pass.
#include <fmt/format.h>

#include "chart_builders.h"
#include "chart_parts.h"
#include "firkin/base/units.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kReadyHeight = 330;

// One row per tensor, after a first row where nothing is ready.
json ready_rows(const TensorProfile& profile, const TimeUnit& unit) {
  json rows = json::array({{{"time", 0}, {"mib", 0}}});
  int64_t ready = 0;
  for (size_t i = 0; i < profile.names.size(); ++i) {
    ready += profile.bytes[i];
    rows.push_back({{"time", unit(profile.ready_s[i])},
                    {"mib", mib(ready)},
                    {"tensor", profile.names[i]},
                    {"size", format_bytes(profile.bytes[i])},
                    {"ready", display_seconds(profile.ready_s[i])}});
  }
  return rows;
}

json time_channel(const TensorProfile& profile, const TimeUnit& unit) {
  constexpr double kMargin = 1.02;
  return {{"field", "time"},
          {"type", "quantitative"},
          {"scale", {{"domain", {0, unit(kMargin * profile.backward_s)}}, {"nice", false}}},
          {"axis", {{"title", fmt::format("time since backward began ({})", unit.symbol)}, {"grid", false}, {"tickCount", 7}}}};
}

json mib_channel() {
  return {{"field", "mib"}, {"type", "quantitative"}, {"axis", {{"title", "gradients ready (MiB)"}, {"tickCount", 6}}}};
}

json tensor_layer(const json& rows, const TensorProfile& profile, const TimeUnit& unit) {
  json tensors = rows;
  tensors.erase(0);
  const json tooltip = {
      {{"field", "tensor"}, {"title", "tensor"}}, {{"field", "size"}, {"title", "size"}}, {{"field", "ready"}, {"title", "ready"}}};
  return {{"data", inline_data(tensors)},
          {"mark", {{"type", "point"}, {"filled", true}, {"size", 22}, {"opacity", 1}, {"color", chart_colour("gap")}}},
          {"encoding", {{"x", time_channel(profile, unit)}, {"y", mib_channel()}, {"tooltip", tooltip}}}};
}

}  // namespace

std::optional<Chart> ready_chart(const Results& results) {
  if (!results.profile || results.profile->tensors.names.empty()) return std::nullopt;
  const TensorProfile& profile = results.profile->tensors;
  const TimeUnit unit = time_unit(profile.backward_s);
  const json rows = ready_rows(profile, unit);
  const json x = time_channel(profile, unit);
  const json end = inline_data(json::array({{{"time", unit(profile.backward_s)}, {"label", "end of backward"}}}));

  json layers = json::array();
  layers.push_back({{"data", inline_data(rows)},
                    {"mark", {{"type", "area"}, {"interpolate", "step-after"}, {"color", chart_colour("gap")}, {"opacity", 0.16}}},
                    {"encoding", {{"x", x}, {"y", mib_channel()}}}});
  layers.push_back({{"data", inline_data(rows)},
                    {"mark", {{"type", "line"}, {"interpolate", "step-after"}, {"color", chart_colour("gap")}, {"strokeWidth", 2}}},
                    {"encoding", {{"x", x}, {"y", mib_channel()}}}});
  layers.push_back(tensor_layer(rows, profile, unit));
  layers.push_back(
      {{"data", end}, {"mark", {{"type", "rule"}, {"color", chart_colour("muted")}, {"strokeDash", {5, 4}}}}, {"encoding", {{"x", x}}}});
  layers.push_back(
      {{"data", end},
       {"mark", {{"type", "text"}, {"align", "right"}, {"baseline", "bottom"}, {"dx", -6}, {"dy", -6}, {"color", chart_colour("muted")}}},
       {"encoding", {{"x", x}, {"y", {{"value", kReadyHeight}}}, {"text", {{"field", "label"}}}}}});

  int64_t total = 0;
  for (const int64_t bytes : profile.bytes) total += bytes;
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
  chart.spec = chart_frame(kReadyHeight, 1);
  chart.spec["layer"] = layers;
  return chart;
}

}  // namespace firkin
