#include "results/display.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "firkin/base/progress.h"
#include "firkin/base/units.h"

namespace firkin {
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

std::string display_mib(double mib) {
  if (mib > 0 && mib * 1024 < 1) return format_bytes(std::llround(mib * double{kMiB}));
  return mib >= 100 ? fmt::format("{:.0f}", mib) : fmt::format("{:.3g}", mib);
}

std::string display_cap(int64_t cap_bytes) {
  return display_mib(mib(cap_bytes));
}

std::string cap_with_unit(int64_t cap_bytes) {
  return display_cap(cap_bytes) + (cap_bytes < kKiB ? "" : " MiB");
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

}  // namespace firkin
