#include "firkin/base/csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr size_t kShownCharacters = 40;  // how much of a bad field a message shows

[[noreturn]] void fail_at(const std::string& file, int64_t line, const std::string& message) {
  throw InputError(fmt::format("{}:{}: {}", file, line, message));
}

// Replaces unprintable bytes, so that a message stays one line and cannot control the terminal.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kShownCharacters)) result += (c >= 0x20 && c < 0x7f) ? c : '?';
  return text.size() > kShownCharacters ? result + "..." : result;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// Removes the next field, and the comma after it, from the front of `rest`. `more`: whether there was a comma. None if
// a quoted field is not closed or is followed by anything but a comma.
std::optional<std::string> take_field(std::string_view& rest, bool& more) {
  std::string field;
  size_t end = 0;
  if (trimmed(rest).starts_with('"')) {
    size_t i = rest.find('"') + 1;
    for (;; ++i) {
      if (i >= rest.size()) return std::nullopt;
      if (rest[i] == '"') {
        if (i + 1 >= rest.size() || rest[i + 1] != '"') break;
        ++i;  // a doubled quote stands for one
      }
      field += rest[i];
    }
    end = std::min(rest.find(',', i), rest.size());
    if (!trimmed(rest.substr(i + 1, end - i - 1)).empty()) return std::nullopt;
  } else {
    end = std::min(rest.find(','), rest.size());
    field = trimmed(rest.substr(0, end));
  }
  more = end < rest.size();
  rest.remove_prefix(more ? end + 1 : end);
  return field;
}

std::vector<std::string> split(std::string_view line, const std::string& file, int64_t number) {
  std::vector<std::string> fields;
  for (bool more = true; more;) {
    std::optional<std::string> field = take_field(line, more);
    if (!field) fail_at(file, number, fmt::format("field {} is badly quoted; expected \"...\" and then a comma", fields.size() + 1));
    fields.push_back(std::move(*field));
  }
  return fields;
}

void check_header(const std::vector<std::string>& header, const CsvColumns& columns, const std::string& file, int64_t line) {
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const std::string expected = columns.required.empty() ? "each name once" : fmt::format("{}", fmt::join(columns.required, ","));
  for (const std::string& name : columns.required) {
    if (!contains(header, name)) fail_at(file, line, fmt::format("no column '{}'; expected {}", name, expected));
  }
  for (size_t i = 0; i < header.size(); ++i) {
    if (std::ranges::count(header, header[i]) > 1) {
      fail_at(file, line, fmt::format("column '{}' appears twice; expected {}", shown(header[i]), expected));
    }
    if (!columns.others_allowed && !contains(columns.required, header[i]) && !contains(columns.optional, header[i])) {
      fail_at(file, line, fmt::format("unknown column '{}'; expected {}", shown(header[i]), expected));
    }
  }
}

}  // namespace

bool CsvTable::has(std::string_view column) const {
  return std::ranges::find(header_, column) != header_.end();
}

size_t CsvTable::column_index(std::string_view column) const {
  const auto found = std::ranges::find(header_, column);
  if (found == header_.end()) throw std::logic_error(fmt::format("{}: no column '{}'", file_, column));
  return static_cast<size_t>(found - header_.begin());
}

const std::string& CsvTable::text(size_t row, std::string_view column) const {
  return rows_[row].fields[column_index(column)];
}

int64_t CsvTable::integer(size_t row, std::string_view column) const {
  const std::string& field = text(row, column);
  const auto value = parse_number<int64_t>(field);
  if (!value) fail(row, fmt::format("{} is '{}'; expected a whole number", column, shown(field)));
  return *value;
}

double CsvTable::number(size_t row, std::string_view column) const {
  const std::string& field = text(row, column);
  const auto value = parse_number<double>(field);
  if (!value || !std::isfinite(*value)) fail(row, fmt::format("{} is '{}'; expected a number", column, shown(field)));
  return *value;
}

void CsvTable::fail(size_t row, const std::string& message) const {
  fail_at(file_, rows_[row].line, message);
}

void CsvTable::fail_in_header(const std::string& message) const {
  fail_at(file_, header_line_, message);
}

CsvTable parse_csv(std::string_view text, const std::string& file, const CsvColumns& columns) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  CsvTable table;
  table.file_ = file;
  int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() > kLongestCsvLine) {
      fail_at(file, number, fmt::format("the line is longer than {} bytes; expected a line of comma-separated values", kLongestCsvLine));
    }
    if (line.find('\0') != std::string_view::npos) fail_at(file, number, "a zero byte; expected text");
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (trimmed(line).empty() || line.front() == '#') continue;
    std::vector<std::string> fields = split(line, file, number);
    if (table.header_line_ == 0) {
      check_header(fields, columns, file, number);
      table.header_ = std::move(fields);
      table.header_line_ = number;
      continue;
    }
    if (fields.size() != table.header_.size()) {
      fail_at(file, number, fmt::format("{} fields; expected {}, as in the header", fields.size(), table.header_.size()));
    }
    table.rows_.push_back({number, std::move(fields)});
  }
  if (table.header_line_ == 0)
    fail_at(file, std::max<int64_t>(number, 1), fmt::format("no header; expected {}", fmt::join(columns.required, ",")));
  return table;
}

CsvTable read_csv(const std::filesystem::path& path, const CsvColumns& columns) {
  return parse_csv(read_text_file(path, kLongestCsvLine, "a CSV file"), path.string(), columns);
}

std::string csv_field(std::string_view text) {
  constexpr std::string_view kNotAllowed("\n\r\0", 3);
  if (text.find_first_of(kNotAllowed) != std::string_view::npos) {
    throw InputError(fmt::format("'{}' holds a line break or a zero byte; expected a name on one line", shown(text)));
  }
  const bool plain = text.find_first_of("\",#") == std::string_view::npos && trimmed(text).size() == text.size();
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace firkin
