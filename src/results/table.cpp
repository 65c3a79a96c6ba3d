#include "results/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "firkin/base/progress.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Characters as a terminal counts them: UTF-8's continuation bytes take no column.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string space(width - std::min(width, columns_of(text)), ' ');
  return right ? space + text : text + space;
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

std::string display_cap(double cap_mib) {
  return cap_mib >= 100 ? fmt::format("{:.0f}", cap_mib) : fmt::format("{:.3g}", cap_mib);
}

std::string display_count(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return with_real_minus(digits);
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
    for (size_t i = 0; i < widths.size(); ++i) line += (i > 0 ? "  " : "") + padded(cell(i), widths[i], table.columns[i].numeric);
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

size_t widest_line(const std::string& text) {
  size_t widest = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    widest = std::max(widest, columns_of(text.substr(start, end - start)));
    start = end + 1;
  }
  return widest;
}

std::string wrapped(const std::string& head, const std::string& text) {
  static const size_t width = text_columns();
  const size_t indent = columns_of(head);
  std::string lines = head;
  size_t column = indent;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
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

void keep_first_and_last(Table& table) {
  constexpr size_t kMost = 12, kFirst = 6, kLast = 4;
  if (table.rows.size() <= kMost) return;
  table.rows.erase(table.rows.begin() + kFirst + 1, table.rows.end() - kLast);
  table.rows[kFirst].cells.assign(table.columns.size(), "");
  table.rows[kFirst].cells[0] = "...";
}

std::string csv_lines(const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& lines) {
  std::string text = fmt::format("{}\n", fmt::join(names, ","));
  for (const auto& line : lines) text += fmt::format("{}\n", fmt::join(line, ","));
  return text;
}

}  // namespace firkin
