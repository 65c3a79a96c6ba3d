// Tables and lists of facts as plain text: what the terminal, a CSV file and a page are made from.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace firkin {

// Who reads: a page has µ, a real minus sign and an en dash.
enum class Medium { kTerminal, kPage };

// Name and value as a person reads them.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Table {
  struct Column {
    std::string title;
    bool numeric = true;  // right-aligned
  };
  struct Row {
    std::vector<std::string> cells;  // plain text
    bool highlighted = false;
  };
  std::string caption;
  std::vector<Column> columns;
  std::vector<Row> rows;
};

// Headings and rows in aligned columns, two spaces apart, each line ended. `remarks`: what stands behind the rows; one per row, or none.
std::string terminal_table(const Table& table, const std::vector<std::string>& remarks = {});

// Of many rows the first six and the last four, with a row of "..." between.
void keep_first_and_last(Table& table);

// Words on lines as wide as the terminal (text_columns()); the first starts with `head`, the others are indented as far.
std::string wrapped(const std::string& head, const std::string& text);

// A header line and the lines, fields joined by commas.
std::string csv_lines(const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& lines);

}  // namespace firkin
