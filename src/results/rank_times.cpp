#include "results/rank_times.h"

#include <fmt/format.h>

#include <algorithm>

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

std::vector<double> times_of_csv(std::string_view text, const std::string& file) {
  const CsvTable table = parse_csv(text, file, {.required = {"seconds"}});
  if (table.rows() == 0) table.fail_at_end("no times; expected lines of seconds");
  std::vector<double> seconds;
  for (size_t row = 0; row < table.rows(); ++row) {
    seconds.push_back(table.number(row, "seconds"));
    if (const char* expected = expected_of_measured(seconds.back())) {
      table.fail(row, fmt::format("seconds is {}; expected {}", seconds.back(), expected));
    }
  }
  return seconds;
}

std::vector<double> times_of_samples(const JsonFields& samples) {
  const std::vector<std::string> settings = samples.maybe_texts(kSettingsKey);
  const auto raw = samples.nested_series(kRawStepsKey);
  const auto setting = static_cast<size_t>(std::ranges::find(settings, kSetting) - settings.begin());
  if (setting >= settings.size() || setting >= raw.size()) samples.fail(kSettingsKey, "no times of the setting 'none'", kExpectedTimes);
  std::vector<double> seconds;
  for (size_t step = 0; step < raw[setting].size(); ++step) {
    for (const double time : raw[setting][step]) {
      const std::string place = fmt::format("{}[{}][{}]", kRawStepsKey, setting, step);
      if (const char* expected = expected_of_measured(time)) samples.fail(place, fmt::format("a time is {}", time), expected);
      seconds.push_back(time);
    }
  }
  if (seconds.empty()) samples.fail(kRawStepsKey, "no times", kExpectedTimes);
  return seconds;
}

std::vector<double> times_of_results(std::string_view text, const std::string& file) {
  const nlohmann::json document = parse_json(text, file, kExpectedTimes);
  try {
    return times_of_samples(JsonFields(document, "").object(kSamplesKey));
  } catch (const FieldError& error) {
    throw InputError(fmt::format("{}:{}: {}", file, json_line_of(text, error.path()), error.what()));
  }
}

}  // namespace

std::vector<double> parse_rank_times(std::string_view text, const std::string& file) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return times_of_results(text, file);
  return times_of_csv(text, file);
}

std::vector<double> read_rank_times(const std::filesystem::path& path) {
  return parse_rank_times(read_text_file(path, kLongestJsonLine, kExpectedTimes), path.string());
}

}  // namespace firkin
