// Text for a person, in UTF-8: what the terminal and a page are made from.
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

// A size in MiB, and a cap in bytes, as MiB without the unit, in three significant digits: "25", "0.5", "1024". Below a KiB
// it is in bytes with the unit: "32 B".
std::string display_mib(double mib);
std::string display_cap(int64_t cap_bytes);

// display_cap() with the unit: "25 MiB", "32 B".
std::string cap_with_unit(int64_t cap_bytes);

// Digits of a number, at least 0, in groups of three: "4,951,296".
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

// Headings and rows in aligned columns, two spaces apart, each line ended. `remarks` follow the rows: one per row, or
// none.
std::string terminal_table(const Table& table, const std::vector<std::string>& remarks = {});

// Wraps words at text_columns(). The first line starts with `head`; the others are indented by its width.
std::string wrapped(const std::string& head, const std::string& text);

}  // namespace firkin
