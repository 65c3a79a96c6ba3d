// Strict reading of CSV files: every malformed line is an error naming file and line, and nothing is dropped.
//
//   const CsvTable table = read_csv("tensors.csv", {.required = {"name", "bytes", "ready_s"}});
//   for (size_t row = 0; row < table.rows(); ++row) table.integer(row, "bytes");
//
// The dialect is RFC 4180 without line breaks inside fields: a header line, commas between fields, optional double
// quotes with "" for a quote. It ignores spaces and tabs around unquoted fields, blank lines, lines starting with #,
// and a byte order mark. LF and CRLF end a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

inline constexpr size_t kLongestCsvLine = size_t{1} << 20;  // bytes; a longer line means another kind of file

// The columns of a file. The header may list them in any order.
struct CsvColumns {
  std::vector<std::string> required;
  std::vector<std::string> optional = {};
  bool others_allowed = false;  // whether columns in neither list are allowed
};

// The content of one CSV file. Every access names a row (from 0) and a column of the file.
class CsvTable {
 public:
  size_t rows() const { return rows_.size(); }
  const std::vector<std::string>& columns() const { return header_; }
  int64_t line(size_t row) const { return rows_[row].line; }  // in the file, from 1
  bool has(std::string_view column) const;

  bool empty(size_t row, std::string_view column) const { return text(row, column).empty(); }
  const std::string& text(size_t row, std::string_view column) const;

  // A whole decimal number. Throws InputError if the field is anything else or does not fit.
  int64_t integer(size_t row, std::string_view column) const;

  // A finite decimal number, correctly rounded. Throws InputError if the field is anything else.
  double number(size_t row, std::string_view column) const;

  // Throws InputError: "FILE:LINE: message", with the line that `row` came from.
  [[noreturn]] void fail(size_t row, const std::string& message) const;

  // Throws InputError about the columns or the file as a whole: "FILE:LINE: message", with the line of the header.
  [[noreturn]] void fail_in_header(const std::string& message) const;

 private:
  friend CsvTable parse_csv(std::string_view text, const std::string& file, const CsvColumns& columns);

  struct Row {
    int64_t line = 0;
    std::vector<std::string> fields;
  };

  size_t column_index(std::string_view column) const;

  std::string file_;
  int64_t header_line_ = 0;
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

// `file` is the name used in errors. Throws InputError if the header lacks or repeats a column, names one in neither
// list, a line has too many or too few fields, a quote is not closed, a line is too long, or a byte is zero.
CsvTable parse_csv(std::string_view text, const std::string& file, const CsvColumns& columns);

// parse_csv() of a file, which is read no further than the first line that is too long. Throws InputError also if the
// file cannot be read.
CsvTable read_csv(const std::filesystem::path& path, const CsvColumns& columns);

// The text as one field, quoted if necessary. Throws InputError if it contains a line break or a zero byte.
std::string csv_field(std::string_view text);

}  // namespace firkin
