#include "results/rank_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "results/steps.h"

namespace firkin {
namespace {

constexpr const char* kExpectedTimes = "a results.json with samples, or a CSV file with a column 'seconds'";
constexpr const char* kSetting = "none";  // the strategy that communicates nothing

RankTimes times_of_csv(std::string_view text, const std::string& file) {
  const CsvTable table = parse_csv(text, file, {.required = {"seconds"}, .optional = {"rank"}});
  if (table.rows() == 0) table.fail_at_end("no times; expected lines of seconds");
  std::map<int64_t, std::vector<double>> by_rank;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double seconds = table.number(row, "seconds");
    if (const char* expected = expected_of_measured(seconds)) table.fail(row, fmt::format("seconds is {}; expected {}", seconds, expected));
    by_rank[table.has("rank") ? table.integer(row, "rank") : 0].push_back(seconds);
  }
  RankTimes times;
  for (auto& [rank, seconds] : by_rank) {
    if (!times.empty() && seconds.size() != times[0].size()) {
      table.fail_at_end(fmt::format("rank {} has {} times; expected {}, one a step, as rank {} has", rank, seconds.size(), times[0].size(),
                                    by_rank.begin()->first));
    }
    times.push_back(std::move(seconds));
  }
  return times;
}

RankTimes times_of_samples(const JsonFields& samples) {
  const std::vector<std::string> settings = samples.maybe_texts(kSettingsKey);
  const auto raw = samples.nested_series(kRawStepsKey);
  const auto setting = static_cast<size_t>(std::ranges::find(settings, kSetting) - settings.begin());
  if (setting >= settings.size() || setting >= raw.size()) samples.fail(kSettingsKey, "no times of the setting 'none'", kExpectedTimes);
  if (raw[setting].empty() || raw[setting][0].empty()) samples.fail(kRawStepsKey, "no times", kExpectedTimes);
  RankTimes times(raw[setting][0].size());
  for (size_t step = 0; step < raw[setting].size(); ++step) {
    const std::string place = fmt::format("{}[{}][{}]", kRawStepsKey, setting, step);
    const std::vector<double>& ranks = raw[setting][step];
    if (ranks.size() != times.size()) samples.fail(place, fmt::format("times of {} ranks", ranks.size()), "as many as in the first step");
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (const char* expected = expected_of_measured(ranks[rank])) samples.fail(place, fmt::format("a time is {}", ranks[rank]), expected);
      times[rank].push_back(ranks[rank]);
    }
  }
  return times;
}

RankTimes times_of_results(std::string_view text, const std::string& file) {
  const nlohmann::json document = parse_json(text, file, kExpectedTimes);
  try {
    return times_of_samples(JsonFields(document, "").object(kSamplesKey));
  } catch (const FieldError& error) {
    throw InputError(fmt::format("{}:{}: {}", file, json_line_of(text, error.path()), error.what()));
  }
}

}  // namespace

RankTimes parse_rank_times(std::string_view text, const std::string& file) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return times_of_results(text, file);
  return times_of_csv(text, file);
}

RankTimes read_rank_times(const std::filesystem::path& path) {
  return parse_rank_times(read_text_file(path, kLongestJsonLine, kExpectedTimes), path.string());
}

}  // namespace firkin
