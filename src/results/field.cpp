#include "results/field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "firkin/base/progress.h"

namespace firkin {

using nlohmann::json;

namespace {

// Characters of UTF-8 text, each one column of a terminal.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string with_real_minus(std::string text) {
  if (text.starts_with('-')) text.replace(0, 1, "−");
  return text;
}

}  // namespace

std::string display_seconds(double seconds) {
  std::string text = format_seconds(seconds);
  if (text.ends_with(" us")) text.replace(text.size() - 2, 1, "µ");
  return with_real_minus(text);
}

std::string display_percent(double ratio, bool sign) {
  const double percent = 100 * ratio;
  std::string text = fmt::format("{:.1f} %", percent);
  if (text == "-0.0 %") text = "0.0 %";
  if (sign && percent > 0 && text != "0.0 %") text.insert(0, 1, '+');
  return with_real_minus(text);
}

static std::string display_mib(double mib) {
  return mib >= 100 ? fmt::format("{:.0f}", mib) : fmt::format("{:.3g}", mib);
}

std::string display_cap(int64_t cap_bytes) {
  return display_mib(mib(cap_bytes));
}

std::string display_count(int64_t value) {
  return fmt::format("{}", fmt::group_digits(value));
}

std::string terminal_table(const Table& table, const std::vector<std::string>& remarks) {
  std::vector<size_t> widths;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    size_t width = columns_of(table.columns[i].title);
    for (const Table::Row& row : table.rows) width = std::max(width, columns_of(row.cells[i]));
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const auto& cell, const std::string& remark) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      line += fmt::format(fmt::runtime(table.columns[i].numeric ? "{}{:>{}}" : "{}{:<{}}"), i > 0 ? "  " : "", cell(i), widths[i]);
    }
    line += remark;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t i) { return table.columns[i].title; }, "");
  for (size_t row = 0; row < table.rows.size(); ++row) {
    add_line([&](size_t i) { return table.rows[row].cells[i]; }, row < remarks.size() ? "  " + remarks[row] : "");
  }
  return text;
}

std::string wrapped(const std::string& head, const std::string& text) {
  static const size_t width = text_columns();
  const size_t indent = columns_of(head);
  std::string lines = head;
  size_t column = indent;
  for (size_t start = 0; start < text.size();) {
    size_t end = std::min(text.find(' ', start), text.size());
    if (text.compare(end, 2, " %") == 0) end = std::min(text.find(' ', end + 1), text.size());  // a number keeps its sign
    const std::string word = text.substr(start, end - start);
    const bool first = column == indent;
    if (!first && column + 1 + columns_of(word) > width) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += columns_of(word);
    start = end + 1;
  }
  return lines + "\n";
}

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
