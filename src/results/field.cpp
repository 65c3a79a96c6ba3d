#include "results/field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

namespace firkin {

using nlohmann::json;

namespace {

constexpr double kMostMib = 8796093022208;  // 8 EiB

bool accepts(Unit unit, double value) {
  constexpr double kLeastMib = 0.5 / static_cast<double>(kMiB);  // a byte, rounded
  if (is_in_mib(unit)) return value >= (unit == Unit::kMib ? kLeastMib : 0) && value <= kMostMib;
  const bool positive = unit == Unit::kBytes || unit == Unit::kSeconds || unit == Unit::kRatio;
  return std::isfinite(value) && (!positive || value > 0);
}

// `value` is as in JSON: in MiB where the struct has bytes.
std::string text_of_number(double value, Unit unit) {
  if (unit == Unit::kSeconds || unit == Unit::kDifference) return display_seconds(value);
  if (unit == Unit::kBytes || unit == Unit::kSize) return format_bytes(static_cast<int64_t>(value));
  if (is_in_mib(unit)) return display_mib(value);
  if (unit == Unit::kShare || unit == Unit::kChange) return display_percent(value, unit == Unit::kChange);
  if (unit == Unit::kCount) return display_count(std::llround(value));
  if (unit == Unit::kRatio) return fmt::format("{:.3f}", value);
  return fmt::format("{:.4g}", unit == Unit::kBandwidth ? value / 1e9 : value);
}

std::string described(const json& value) {
  constexpr size_t kLongest = 40;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

[[noreturn]] void fail_at(const std::string& path, const std::string& problem, const std::string& expected) {
  throw InputError(fmt::format("results: {}{}{}; expected {}", path, path.empty() ? "" : ": ", problem, expected));
}

}  // namespace

std::string words_of_key(std::string key) {
  if (key.ends_with("_s")) key.resize(key.size() - 2);
  std::ranges::replace(key, '_', ' ');
  return key;
}

JsonFields::JsonFields(const json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (!object.is_object()) fail_at(path_, described(object), "an object");
}

const json* JsonFields::find(const std::string& key) const {
  const size_t dot = key.find('.');
  const std::string name = key.substr(0, dot);
  const auto found = object_->find(name);
  if (found == object_->end() || found->is_null()) return nullptr;
  return dot == std::string::npos ? &*found : JsonFields(*found, path_of(name)).find(key.substr(dot + 1));
}

std::string JsonFields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

JsonFields JsonFields::object(const std::string& key) const {
  if (!has(key)) fail(key, "missing", "an object");
  return {*find(key), path_of(key)};
}

std::vector<JsonFields> JsonFields::objects(const std::string& key) const {
  const json* list = find(key);
  if (!list) fail(key, "missing", "an array of objects");
  field_details::require_array(*list, path_of(key));
  std::vector<JsonFields> objects;
  for (const json& one : *list) {
    objects.emplace_back(one, field_details::element_path(path_of(key), objects.size()));
  }
  return objects;
}

void JsonFields::fail(const std::string& name, const std::string& problem, const std::string& expected) const {
  fail_at(path_of(name), problem, expected);
}

namespace field_details {

json& place_in(json& object, const std::string& key) {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? object[key] : place_in(object[key.substr(0, dot)], key.substr(dot + 1));
}

json json_of_interval(const Interval& interval) {
  // JSON has no infinity: the end of an unbounded interval is null.
  const auto end = [](double x) { return std::isfinite(x) ? json(x) : json(); };
  return json{{"low", end(interval.low)}, {"high", end(interval.high)}};
}

std::string expected_number(Unit unit) {
  if (unit == Unit::kBytesAsMib) return "a size in MiB";
  return accepts(unit, 0) ? "a number" : "a positive number";
}

double read_plain(const json& value, const std::string& path, Unit unit, double) {
  // Null in a list stands for infinity.
  if (value.is_null() && accepts(unit, 0) && !is_in_mib(unit)) return HUGE_VAL;
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!accepts(unit, number)) fail_at(path, described(value), expected_number(unit));
  return is_in_mib(unit) ? number * static_cast<double>(kMiB) : number;
}

int64_t read_plain(const json& value, const std::string& path, Unit unit, int64_t) {
  if (is_in_mib(unit)) {
    const double bytes = read_plain(value, path, unit, 0.0);
    return value == kMostMib ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(std::llround(bytes));
  }
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!fits) fail_at(path, described(value), "an integer of at most 64 bits");
  const auto number = value.get<int64_t>();
  if (!accepts(unit, static_cast<double>(number))) fail_at(path, described(value), "a positive number of bytes");
  return number;
}

bool read_plain(const json& value, const std::string& path, Unit, bool) {
  if (!value.is_boolean()) fail_at(path, described(value), "true or false");
  return value.get<bool>();
}

std::string read_plain(const json& value, const std::string& path, Unit, const std::string&) {
  if (!value.is_string()) fail_at(path, described(value), "a string");
  return value.get<std::string>();
}

size_t read_index(const json& value, const std::string& path, std::span<const std::string_view> names) {
  const auto found = value.is_string() ? std::ranges::find(names, value.get_ref<const std::string&>()) : names.end();
  if (found == names.end()) fail_at(path, described(value), fmt::format("one of {}", fmt::join(names, ", ")));
  return static_cast<size_t>(found - names.begin());
}

// An interval from too few samples has no end.
Interval read_interval(const json& value, const std::string& path) {
  const JsonFields fields(value, path);
  const auto end = [&](const char* name) {
    if (!value.contains(name)) fields.fail(name, "missing", "a number");
    return fields.maybe<double>(name);
  };
  const Interval interval{end("low").value_or(0), end("high").value_or(HUGE_VAL)};
  if (interval.low > interval.high) fields.fail("low", fmt::format("{} is above high, {}", interval.low, interval.high), "low <= high");
  return interval;
}

void require_array(const json& value, const std::string& path) {
  if (!value.is_array()) fail_at(path, described(value), "an array");
}

std::string element_path(const std::string& path, size_t i) {
  return fmt::format("{}[{}]", path, i);
}

std::optional<std::string> text_of_json(const json& value, Unit unit) {
  if (value.is_null()) return std::nullopt;
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return text_of_number(value.get<double>(), unit);
  if (value.is_object()) {  // an interval
    const auto low = text_of_json(value["low"], unit), high = text_of_json(value["high"], unit);
    return low && high ? fmt::format("{} – {}", *low, *high) : "too few samples";
  }
  std::string texts;
  for (const json& one : value) texts += (texts.empty() ? "" : ", ") + text_of_json(one, unit).value_or("–");
  return texts;
}

}  // namespace field_details
}  // namespace firkin
