#include "firkin/plan/rank_times.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

using nlohmann::json;

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

// The values of a results.json that are needed here, with complaints that name line and path.
class ResultsSamples {
 public:
  ResultsSamples(std::string_view text, const std::string& file)
      : text_(text), file_(file), document_(parse_json(text, file, kExpectedTimes)) {}

  std::vector<double> times() const {
    const json& settings = array(member(document_, "samples", "samples"), "settings", "samples.settings");
    const json& raw = array(document_["samples"], "raw_step_s_by_rank", "samples.raw_step_s_by_rank");
    size_t setting = 0;
    while (setting < settings.size() && settings[setting] != kSetting) ++setting;
    if (setting >= settings.size() || setting >= raw.size()) fail("samples", fmt::format("no times of the setting '{}'", kSetting));
    const std::string path = fmt::format("samples.raw_step_s_by_rank[{}]", setting);
    std::vector<double> seconds;
    for (const json& step : elements(raw[setting], path)) {
      const std::string step_path = fmt::format("{}[{}]", path, &step - &raw[setting][0]);
      for (const json& value : elements(step, step_path)) seconds.push_back(time(value, step_path));
    }
    if (seconds.empty()) fail(path, "no times");
    return seconds;
  }

 private:
  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw InputError(fmt::format("{}:{}: {}: {}; expected {}", file_, json_line_of(text_, path), path, what, kExpectedTimes));
  }

  const json& member(const json& object, const char* name, const std::string& path) const {
    if (!object.is_object() || !object.contains(name)) fail(path, "missing");
    return object[name];
  }

  const json& elements(const json& value, const std::string& path) const {
    if (!value.is_array()) fail(path, "no array");
    return value;
  }

  const json& array(const json& object, const char* name, const std::string& path) const {
    return elements(member(object, name, path), path);
  }

  double time(const json& value, const std::string& path) const {
    const double seconds = value.is_number() ? value.get<double>() : 0;
    const char* expected = expected_of_measured(seconds);
    if (!expected) return seconds;
    fail(path, fmt::format("a time is {}, and should be {}", value.is_structured() ? "no number" : value.dump(), expected));
  }

  std::string_view text_;
  const std::string& file_;
  json document_;
};

}  // namespace

std::vector<double> parse_rank_times(std::string_view text, const std::string& file) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return ResultsSamples(text, file).times();
  return times_of_csv(text, file);
}

std::vector<double> read_rank_times(const std::filesystem::path& path) {
  return parse_rank_times(read_text_file(path, kLongestJsonLine, kExpectedTimes), path.string());
}

}  // namespace firkin
