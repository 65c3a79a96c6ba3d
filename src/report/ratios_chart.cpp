// Two runs compared: the time of b over that of a, setting by setting.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {
namespace {

const char* words_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster:
      return "b is faster";
    case Verdict::kSlower:
      return "b is slower";
    case Verdict::kSame:
      return "cannot be told apart";
    case Verdict::kUnknown:
      break;
  }
  return "unknown";
}

nlohmann::json ratio_mark(const ComparedSetting& setting) {
  const MeasuredSetting& a = setting.a;
  nlohmann::json mark = {{"setting", a.configuration.empty() ? a.name : a.configuration + ": " + a.name},
                         {"ratio", setting.ratio},
                         {"end", setting.ratio},
                         {"change", display_percent(setting.ratio - 1, true)},
                         {"verdict", words_of(setting.verdict)},
                         {"interval", "–"},
                         {"a", display_seconds(a.median_s)},
                         {"b", display_seconds(setting.b.median_s)}};
  if (!setting.ratio_interval) return mark;
  const Interval& interval = *setting.ratio_interval;
  mark.update({{"low", interval.low},
               {"high", interval.high},
               {"end", std::max(setting.ratio, interval.high)},
               {"interval", fmt::format("{:.3f} to {:.3f}", interval.low, interval.high)}});
  return mark;
}

}  // namespace

std::optional<Chart> ratios_chart(const std::vector<ComparedSetting>& settings) {
  if (settings.empty()) return std::nullopt;
  nlohmann::json marks = nlohmann::json::array();
  for (const ComparedSetting& setting : settings) marks.push_back(ratio_mark(setting));
  const auto count = [&settings](Verdict verdict) { return std::ranges::count(settings, verdict, &ComparedSetting::verdict); };
  Chart chart;
  chart.id = "ratios";
  chart.title = "Time of run b over time of run a";
  chart.caption =
      "Left of the dashed line b takes less time, right of it more. An interval (95 %) that contains 1 cannot tell the two apart; a pale "
      "point has none.";
  chart.summary = fmt::format("Of {} settings b is faster in {}, slower in {}; {} cannot be told apart.", settings.size(),
                              count(Verdict::kFaster), count(Verdict::kSlower), count(Verdict::kSame));
  chart.spec = filled_chart("ratios", {{"settings", marks}});
  return chart;
}

}  // namespace firkin
