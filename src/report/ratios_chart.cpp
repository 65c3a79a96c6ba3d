// Two runs compared: the time of B over that of A, setting by setting.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {
namespace {

const char* words_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster:
      return "B is faster";
    case Verdict::kSlower:
      return "B is slower";
    case Verdict::kSame:
      return "cannot be told apart";
    case Verdict::kUnknown:
      break;
  }
  return "unknown";
}

using NameParts = std::vector<std::string>;

// "demo, batch 1, fp32" -> demo; batch 1; fp32
NameParts parts_of(const std::string& configuration) {
  constexpr std::string_view kBetween = ", ";
  NameParts parts;
  for (size_t start = 0; start < configuration.size();) {
    const size_t end = std::min(configuration.find(kBetween, start), configuration.size());
    parts.push_back(configuration.substr(start, end - start));
    start = end + kBetween.size();
  }
  return parts;
}

// What tells a setting from the others: without what all configurations have.
std::string label_of(const MeasuredSetting& setting, const NameParts& in_all) {
  NameParts parts = parts_of(setting.configuration);
  std::erase_if(parts, [&in_all](const std::string& part) { return std::ranges::count(in_all, part) > 0; });
  return parts.empty() ? setting.name : fmt::format("{}: {}", fmt::join(parts, ", "), setting.name);
}

NameParts parts_of_all(const std::vector<ComparedSetting>& settings) {
  NameParts common = parts_of(settings[0].a.configuration);
  for (const ComparedSetting& setting : settings) {
    const NameParts parts = parts_of(setting.a.configuration);
    std::erase_if(common, [&parts](const std::string& part) { return std::ranges::count(parts, part) == 0; });
  }
  return common;
}

nlohmann::json ratio_mark(const ComparedSetting& setting, const NameParts& in_all) {
  const MeasuredSetting& a = setting.a;
  nlohmann::json mark = {{"setting", label_of(a, in_all)},
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
  const NameParts in_all = parts_of_all(settings);
  for (const ComparedSetting& setting : settings) marks.push_back(ratio_mark(setting, in_all));
  const auto count = [&settings](Verdict verdict) { return std::ranges::count(settings, verdict, &ComparedSetting::verdict); };
  Chart chart;
  chart.id = "ratios";
  chart.title = "Time of run B over time of run A";
  chart.caption =
      "Left of the dashed line B takes less time, right of it more. An interval (95 %) that contains 1 cannot tell the two apart; a pale "
      "point has none.";
  chart.summary = fmt::format("Of {} settings B is faster in {}, slower in {}; {} cannot be told apart.", settings.size(),
                              count(Verdict::kFaster), count(Verdict::kSlower), count(Verdict::kSame));
  chart.spec = filled_chart("ratios", {{"settings", marks}});
  return chart;
}

}  // namespace firkin
