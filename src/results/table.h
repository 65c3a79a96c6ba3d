// Tables and facts as text for a person, in UTF-8: what the terminal, a CSV file and a page are made from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace firkin {

// Three significant digits and a real minus sign: "415 ms", "12.3 µs", "−3 ms".
std::string display_seconds(double seconds);

// "0.4 %"; with `sign`, "+0.4 %" and "−0.4 %".
std::string display_percent(double ratio, bool sign = false);

// A cap without its unit, three significant digits: "25", "0.5", "1024".
std::string display_cap(double cap_mib);

// Digits in groups of three: "4,951,296".
std::string display_count(int64_t value);

// Name and value as a person reads them.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Table {
  struct Column {
    std::string title;
    bool numeric = true;  // right-aligned
  };
  struct Row {
    std::vector<std::string> cells;
    bool highlighted = false;
  };
  std::string caption;
  std::vector<Column> columns;
  std::vector<Row> rows;
};

// Headings and rows in aligned columns, two spaces apart, each line ended. `remarks`: what stands behind the rows; one per row, or none.
std::string terminal_table(const Table& table, const std::vector<std::string>& remarks = {});

// Of a text of several lines: characters in the longest.
size_t widest_line(const std::string& text);

// Of many rows the first six and the last four, with a row of "..." between.
void keep_first_and_last(Table& table);

// Words on lines as wide as the terminal (text_columns()); the first starts with `head`, the others are indented as far.
std::string wrapped(const std::string& head, const std::string& text);

// A header line and the lines, fields joined by commas.
std::string csv_lines(const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& lines);

}  // namespace firkin
