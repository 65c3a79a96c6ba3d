// All-reduce times as CSV: Firkin's own allreduce.csv, CMSC 828G's, and others by the names of their columns.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "benchmark_rows.h"
#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/uncertainty.h"

namespace firkin {
namespace {

struct Column {
  std::string_view name;
  double unit = 1;  // bytes, seconds
};
constexpr std::array kSizes = {Column{"bytes"}, Column{"total_bytes"}, Column{"size_mib", kMiB}, Column{"MiB", kMiB}};
constexpr std::array kTimes = {Column{"time_us", 1e-6}, Column{"time_ms", 1e-3}, Column{"time_s"}, Column{"average_time"}};
constexpr std::array kOutOfPlace = {Column{"time_us_oop", 1e-6}}, kInPlace = {Column{"time_us_ip", 1e-6}};
constexpr std::array kRanks = {Column{"ranks"}, Column{"world_size"}};
constexpr std::array kTypes = {Column{"type"}, Column{"dtype"}};
constexpr std::array kCollectives = {Column{"collective"}, Column{"op"}};
constexpr const char* kDeviation = "stdev_time";
constexpr const char* kExpectedColumns = "bytes or size_mib; time_us, time_ms or time_s; ranks";
// The columns of CMSC 828G's file, which has no column for the collective: all its rows are all-reduces.
constexpr std::array<std::string_view, 6> kCourse = {"backend", "world_size", "total_elements", "total_bytes", "average_time", kDeviation};

// The column of one of these names; without a name if there is none. Throws InputError for two.
Column one_of(const CsvTable& table, std::span<const Column> names) {
  Column found;
  for (const Column& column : names) {
    if (!table.has(column.name)) continue;
    if (!found.name.empty()) table.fail_in_header(fmt::format("columns '{}' and '{}'; expected one of them", found.name, column.name));
    found = column;
  }
  return found;
}

// Whether the row has every COLUMN=VALUE that is asked for.
bool is_wanted(const CsvTable& table, size_t row, const ImportOptions& options) {
  return std::ranges::all_of(options.where, [&](const std::string& condition) {
    const size_t equals = condition.find('=');
    const std::string column = condition.substr(0, equals);
    if (equals == std::string::npos || !table.has(column)) {
      throw InputError(
          fmt::format("--where {}: expected COLUMN=VALUE with one of the columns {}", condition, fmt::join(table.columns(), ", ")));
    }
    return table.text(row, column) == condition.substr(equals + 1);
  });
}

// Throws InputError if the row's results are wrong, or if a column of words (a cluster, a backend), but `others`, has
// another value than in the first row: times of several settings would mix.
void check_row(const CsvTable& table, size_t row, size_t first, std::initializer_list<std::string_view> others) {
  for (const std::string& column : table.columns()) {
    const std::string &value = table.text(row, column), &before = table.text(first, column);
    const auto number = parse_number<double>(value);
    if (column.ends_with("wrong") && number > 0.0) table.fail(row, fmt::format("{} is {}; expected correct results", column, value));
    if (value == before || std::ranges::count(others, column) > 0 || number) continue;
    table.fail(row, fmt::format("{} '{}' after '{}'; expected one, as --where '{}={}' chooses", column, value, before, column, before));
  }
}

int64_t bytes_of(const CsvTable& table, size_t row, const Column& size) {
  const double bytes = size.unit * table.number(row, size.name);
  const bool is_whole = size.unit != 1 || bytes == std::floor(bytes);
  if (is_whole && bytes >= 1 && bytes < 0x1p53) return static_cast<int64_t>(std::llround(bytes));
  table.fail(row, fmt::format("{} is {}; expected a whole number of bytes, at least 1", size.name, table.text(row, size.name)));
}

}  // namespace

bool is_allreduce_csv(std::string_view text) {
  const std::vector<std::string_view> fields = words_of(first_line(text).second, " ,\"");
  return fields.size() > 1 && std::ranges::find_first_of(fields, kSizes, {}, {}, &Column::name) != fields.end();
}

Imported parse_allreduce_times(std::string_view text, const std::string& file, const ImportOptions& options) {
  const std::string clean = undecorated(text);
  const CsvTable table = parse_csv(clean, file, {.required = {}, .others_allowed = true});
  const bool of_firkin =
      table.has("bytes") && table.has("world_size") && (table.has("median_s") || table.has("time_s") || table.has("mean_s"));
  if (of_firkin) return {.table = parse_allreduce_csv(clean, file)};
  const Column size = one_of(table, kSizes), ranks = one_of(table, kRanks), type = one_of(table, kTypes);
  Column time = one_of(table, options.in_place ? kInPlace : kOutOfPlace);
  if (time.name.empty()) time = one_of(table, kTimes);
  for (const auto& [column, what] : {std::pair{size, "sizes"}, {time, "times"}}) {
    if (column.name.empty()) table.fail_in_header(fmt::format("no column of {}; expected {}", what, kExpectedColumns));
  }
  const Column collective = one_of(table, kCollectives);
  const bool is_course = std::ranges::equal(table.columns(), kCourse);
  if (collective.name.empty() && !is_course) require_collective(options, at_line(file, first_line(clean).first));
  BenchmarkRows rows;
  std::optional<size_t> first;
  for (size_t i = 0; i < table.rows(); ++i) {
    if (!is_wanted(table, i, options)) continue;
    BenchmarkRow row{.where = at_line(file, table.line(i))};
    if (!collective.name.empty() && !names_all_reduce(table.text(i, collective.name))) {
      rows.skip("rows of " + table.text(i, collective.name), row.where);
      continue;
    }
    first = first.value_or(i);
    check_row(table, i, *first, {type.name, collective.name});
    row.bytes = bytes_of(table, i, size);
    row.seconds = time.unit * table.number(i, time.name);
    if (!ranks.name.empty()) {
      row.world_size = table.integer(i, ranks.name);
      if (row.world_size < 1) table.fail(i, fmt::format("{} is {}; expected at least 1", ranks.name, row.world_size));
    }
    if (!type.name.empty()) row.type = table.text(i, type.name);
    if (table.has(kDeviation)) row.stdev_s = table.number(i, kDeviation);
    if (row.stdev_s && *row.stdev_s < 0) table.fail(i, fmt::format("{} is {}; expected at least 0", kDeviation, *row.stdev_s));
    rows.rows.push_back(row);
  }
  return import_rows(std::move(rows), options, "all-reduce times", file);
}

}  // namespace firkin
