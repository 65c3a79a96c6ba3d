// Other people's all-reduce times as CSV: a column of sizes, one of times and perhaps one of ranks, by whatever name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "benchmark_rows.h"
#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/uncertainty.h"

namespace firkin {
namespace {

struct Unit {
  std::string_view name;
  double value;
};
constexpr double kKilo = 1e3, kMega = 1e6, kGiga = 1e9;
constexpr std::array kByteUnits = {Unit{"bytes", 1},  Unit{"nbytes", 1}, Unit{"byte", 1},   Unit{"b", 1},      Unit{"kib", kKiB},
                                   Unit{"mib", kMiB}, Unit{"gib", kGiB}, Unit{"kb", kKilo}, Unit{"mb", kMega}, Unit{"gb", kGiga}};
constexpr std::array kTimeUnits = {Unit{"s", 1},          Unit{"sec", 1},   Unit{"seconds", 1},         Unit{"ms", 1e-3},
                                   Unit{"msec", 1e-3},    Unit{"us", 1e-6}, Unit{"usec", 1e-6},         Unit{"\u00B5s", 1e-6},
                                   Unit{"\u03BCs", 1e-6}, Unit{"ns", 1e-9}, Unit{"milliseconds", 1e-3}, Unit{"microseconds", 1e-6}};
// Names of a column of ranks, reduced to letters and digits.
constexpr std::array<std::string_view, 15> kRanks = {"worldsize", "world",    "ranks",   "nranks",    "numranks",
                                                     "gpus",      "ngpus",    "numgpus", "processes", "numprocesses",
                                                     "procs",     "numprocs", "nprocs",  "nproc",     "np"};
constexpr std::array<std::string_view, 7> kNodes = {"nodes", "nnodes", "numnodes", "ppn", "gpuspernode", "rankspernode", "taskspernode"};
constexpr std::array<std::string_view, 9> kTimes = {"median",  "time", "latency", "lat", "duration",
                                                    "average", "avg",  "mean",    "t"};  // the best first
constexpr const char* kCourseDeviation = "stdev_time";                                   // seconds
constexpr const char* kExpectedColumns = "columns such as bytes, time_us and ranks";

const Unit* find_unit(const auto& units, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    const auto found = std::ranges::find(units, std::string_view(part), &Unit::name);
    if (found != units.end()) return &*found;
  }
  return nullptr;
}

// The parts of a column's name in lower case: "Time (us)" and "time_us" are time and us. Letters beyond ASCII, and the ?
// that may stand for one, are part of a word: the unit of "time (?s)" is not seconds.
std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80 || c == '?') {
      parts.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!parts.back().empty()) {
      parts.emplace_back();
    }
  }
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

std::string joined(std::string_view name) {
  return fmt::format("{}", fmt::join(parts_of(name), ""));
}

// Bytes per unit of a column of sizes, HUGE_VAL if its name states no unit; none if it is another column.
std::optional<double> bytes_in(std::string_view column) {
  constexpr std::array<std::string_view, 7> kSizes = {"size", "message", "msg", "total", "bucket", "data", "buffer"};
  const std::vector<std::string> parts = parts_of(column);
  const Unit* unit = find_unit(kByteUnits, parts);
  const bool only_sizes = std::ranges::all_of(parts, [&](const std::string& part) {
    return std::ranges::find(kSizes, part) != kSizes.end() ||
           std::ranges::find(kByteUnits, std::string_view(part), &Unit::name) != kByteUnits.end();
  });
  if (parts.empty() || column == "b" || !only_sizes || (!unit && std::ranges::find(parts, "size") == parts.end())) return std::nullopt;
  return unit ? unit->value : HUGE_VAL;
}

// How good a column of times is, the least being the best: by how little else it names (setup_time_us), then by what.
// None if it is another column.
std::optional<std::pair<ptrdiff_t, ptrdiff_t>> time_rank(std::string_view column, bool in_place) {
  constexpr std::array<std::string_view, 22> kOthers = {"stdev", "std",   "stddev",  "stderr",  "min",       "max",     "gap", "p50",
                                                        "p90",   "p95",   "p99",     "step",    "total",     "busbw",   "bw",  "algbw",
                                                        "cpu",   "train", "compute", "forward", "bandwidth", "backward"};
  constexpr std::array<std::string_view, 5> kOtherCollectives = {"gather", "scatter", "broadcast", "bcast", "alltoall"};
  const std::vector<std::string> parts = parts_of(column);
  const auto has = [&](std::string_view part) { return std::ranges::find(parts, part) != parts.end(); };
  const bool is_in_place = has("ip") || (has("place") && !has("out"));
  const bool is_out_of_place = has("oop") || (has("place") && has("out"));
  const auto is_in_name = [name = joined(column)](std::string_view part) { return name.find(part) != std::string::npos; };
  if (std::ranges::any_of(kOtherCollectives, is_in_name) || (has("iteration") && !has("per"))) return std::nullopt;
  if (std::ranges::any_of(kOthers, has) || find_unit(kByteUnits, parts) || (in_place ? is_out_of_place : is_in_place)) return std::nullopt;
  const auto named = std::ranges::find_if(kTimes, has);
  if (named == kTimes.end() && (parts.size() != 1 || !find_unit(kTimeUnits, parts))) return std::nullopt;
  const auto is_else = [](const std::string& part) {
    return std::ranges::find(kTimes, part) == kTimes.end() && !find_unit(kTimeUnits, {part});
  };
  return std::pair(std::ranges::count_if(parts, is_else), named - kTimes.begin());
}

struct Source {
  std::string bytes, time, ranks, type;  // columns; empty: none
  std::string gpus_per_rank, in_place;   // rccl-tests'; the latter tells which side a row is of
  double byte_unit = HUGE_VAL, time_unit = 1;
};

Source find_columns(const CsvTable& table, const ImportOptions& options) {
  Source source;
  std::optional<std::pair<ptrdiff_t, ptrdiff_t>> best;
  std::string as_good, ranks_again, sizes_again;  // another column of times, of ranks, of sizes
  for (const std::string& column : table.columns()) {
    if (const auto unit = bytes_in(column)) {
      const bool is_exact = *unit == 1 && source.byte_unit != 1;  // "size" beside "bytes" may count elements; MiB are rounded
      if (!is_exact && !source.bytes.empty()) {
        if (*unit == source.byte_unit) sizes_again = column;
        continue;
      }
      source.bytes = column;
      source.byte_unit = *unit;
      sizes_again = "";
    } else if (const auto rank = time_rank(column, options.in_place); rank && (!best || *rank <= *best)) {
      as_good = rank == best ? source.time : "";
      source.time = column;
      best = rank;
    } else if (const std::string name = joined(column); std::ranges::find(kRanks, std::string_view(name)) != kRanks.end()) {
      (source.ranks.empty() ? source.ranks : ranks_again) = column;
    } else if (name.ends_with("unit") || name.ends_with("units")) {
      table.fail_in_header(fmt::format("a column '{}'; expected units in the names of columns, as time_us", column));
    } else if (column == "type" || column == "dtype") {
      source.type = column;
    } else if (name == "inplace") {
      source.in_place = column;
    } else if (name == "gpusperrank") {
      source.gpus_per_rank = column;
    }
  }
  if (source.bytes.empty()) table.fail_in_header(fmt::format("no column of sizes; expected {}", kExpectedColumns));
  if (source.time.empty()) table.fail_in_header(fmt::format("no column of times; expected {}", kExpectedColumns));
  if (!as_good.empty()) table.fail_in_header(fmt::format("columns of times '{}' and '{}'; expected one", as_good, source.time));
  if (!ranks_again.empty()) table.fail_in_header(fmt::format("columns of ranks '{}' and '{}'; expected one", source.ranks, ranks_again));
  if (!sizes_again.empty()) table.fail_in_header(fmt::format("columns of sizes '{}' and '{}'; expected one", source.bytes, sizes_again));
  if (source.byte_unit == HUGE_VAL) source.byte_unit = 1;
  const bool of_course = source.time == "average_time";  // CMSC 828G's: in seconds, which its name does not say
  const Unit* named = find_unit(kTimeUnits, parts_of(source.time));
  const Unit* given = find_unit(kTimeUnits, {options.unit});
  if (!named && !given && !of_course) {
    table.fail_in_header(fmt::format("column '{}' does not name its unit; expected --unit s, ms or us", source.time));
  }
  source.time_unit = named ? named->value : given ? given->value : 1;
  return source;
}

// Whether the row has every COLUMN=VALUE that is asked for, and is of the side that is.
bool is_wanted(const CsvTable& table, size_t row, const Source& source, const ImportOptions& options) {
  const bool in_place =
      !source.in_place.empty() && (table.text(row, source.in_place) == "1" || joined(table.text(row, source.in_place)) == "true");
  if (!source.in_place.empty() && in_place != options.in_place) return false;
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

// The operation that a column of the row names, if it is no all-reduce; empty otherwise. Columns of operations have to
// name one, or a reduction; in others only a collective's name counts.
std::string other_collective(const CsvTable& table, size_t row) {
  constexpr std::array<std::string_view, 6> kOperations = {"op", "operation", "collective", "coll", "commop", "redop"};
  constexpr std::array<std::string_view, 8> kReductions = {"allreduce", "add", "sum", "max", "min", "prod", "avg", "mean"};
  constexpr std::array<std::string_view, 4> kNothing = {"", "na", "none", "null"};
  for (const std::string& column : table.columns()) {
    const std::string &text = table.text(row, column), value = joined(text), collective = collective_in(text);
    const auto is_in_value = [&](std::string_view part) { return value.find(part) != std::string::npos; };
    const bool says_nothing = std::ranges::count(kNothing, value) > 0 || parse_number<double>(text);
    const bool says_operation = std::ranges::count(kOperations, joined(column)) > 0 && !says_nothing;
    const bool is_reduction = says_operation && collective.empty() && std::ranges::any_of(kReductions, is_in_value);
    const bool is_other = collective.empty() ? says_operation : collective.find("allreduce") == std::string::npos;
    if (is_other && !is_reduction) return text;
  }
  return "";
}

// A column of words (a cluster, a backend, a setting), or of nodes for the same ranks, must have one value: otherwise
// times of several settings would mix.
void check_one_setting(const CsvTable& table, const std::vector<size_t>& rows, const Source& source) {
  for (const std::string& column : table.columns()) {
    const std::string name = joined(column);
    if (column == source.bytes || column == source.time || column == source.ranks || column == source.type || name == "timestamp") continue;
    const std::string& first = table.text(rows.front(), column);
    for (const size_t row : rows) {
      const bool as_many = source.ranks.empty() || table.text(row, source.ranks) == table.text(rows.front(), source.ranks);
      const bool counts_nodes = as_many && std::ranges::find(kNodes, std::string_view(name)) != kNodes.end();
      const std::string& value = table.text(row, column);
      const bool is_number = parse_number<double>(value) || parse_number<double>(first);
      if (value == first || (is_number && !counts_nodes)) continue;
      table.fail(row, fmt::format("{} '{}' after '{}'; expected one, as --where '{}={}' chooses", column, value, first, column, first));
    }
  }
}

int64_t bytes_of(const CsvTable& table, size_t row, const Source& source) {
  constexpr double kMost = 9007199254740992.0;  // 2^53
  const double bytes = source.byte_unit * table.number(row, source.bytes);
  if (source.byte_unit == 1 && bytes != std::floor(bytes)) {
    table.fail(row, fmt::format("{} is {}; expected a whole number", source.bytes, table.text(row, source.bytes)));
  }
  if (bytes >= 1 && bytes < kMost) return static_cast<int64_t>(std::llround(bytes));
  table.fail(row, fmt::format("{} is {}; expected at least 1", source.bytes, table.text(row, source.bytes)));
}

BenchmarkRow row_of(const CsvTable& table, size_t row, const Source& source, const std::string& where) {
  BenchmarkRow result{.where = where, .bytes = bytes_of(table, row, source), .seconds = source.time_unit * table.number(row, source.time)};
  if (const char* expected = expected_of_measured(result.seconds)) {
    table.fail(row, fmt::format("{} is {}; expected {}", source.time, table.text(row, source.time), expected));
  }
  if (!source.ranks.empty()) {
    result.world_size = table.integer(row, source.ranks);
    if (result.world_size < 1) table.fail(row, fmt::format("{} is {}; expected at least 1", source.ranks, result.world_size));
    if (!source.gpus_per_rank.empty()) {
      const int64_t gpus = table.integer(row, source.gpus_per_rank);
      if (gpus < 1 || result.world_size > kLargestWorld / gpus) {
        table.fail(row, fmt::format("{} is {}; expected at least 1, and at most {} in all", source.gpus_per_rank, gpus, kLargestWorld));
      }
      result.world_size *= gpus;
    }
  }
  if (!source.type.empty()) result.type = table.text(row, source.type);
  for (const std::string& column : table.columns()) {
    const std::string& text = table.text(row, column);
    const bool is_wrong = joined(column) == "wrong" && parse_number<double>(text).value_or(0) > 0;
    if (is_wrong || joined(text) == "failed") table.fail(row, fmt::format("{} is {}; expected correct results", column, text));
  }
  if (table.has(kCourseDeviation)) {
    result.stdev_s = table.number(row, kCourseDeviation);
    if (*result.stdev_s < 0) table.fail(row, fmt::format("{} is {}; expected at least 0", kCourseDeviation, *result.stdev_s));
  }
  return result;
}

// The text with commas between fields, where its header has semicolons, tabs or Markdown's bars.
std::string with_commas(const std::string& text, const std::string& file) {
  std::string result;
  std::optional<bool> has_commas;  // of the header
  for_each_line(text, [&](int64_t number, std::string_view line) {
    const auto words = words_of(line);
    const bool is_row = !words.empty() && !words[0].starts_with('#'), comma = line.find(',') != std::string_view::npos;
    if (is_row && !has_commas) has_commas = comma;
    if (is_row && !*has_commas) {
      if (comma) fail(at_line(file, number), "a comma between other separators; expected numbers such as 0.5");
      if (words_of(line, " \t|:-").empty()) line = "#";  // the rule below Markdown's header
      if (words[0].starts_with('|')) line.remove_prefix(std::min(line.find('|') + 1, line.size()));
      if (words.back().ends_with('|')) line = line.substr(0, line.rfind('|'));
    }
    for (const char c : line) result += has_commas == false && (c == ';' || c == '\t' || c == '|') ? ',' : c;
    result += '\n';
  });
  return result;
}

}  // namespace

bool is_allreduce_csv_header(std::string_view line) {
  const std::vector<std::string_view> fields = words_of(line, ",;\t|");
  return fields.size() > 1 && std::ranges::any_of(fields, [](std::string_view field) { return bytes_in(field).has_value(); });
}

Imported parse_allreduce_times(std::string_view text, const std::string& file, const ImportOptions& options) {
  const std::string clean = with_commas(undecorated(text), file);
  const CsvTable table = parse_csv(clean, file, {.required = {}, .others_allowed = true});
  const bool of_firkin =
      table.has("bytes") && table.has("world_size") && (table.has("median_s") || table.has("time_s") || table.has("mean_s"));
  if (of_firkin) return {.table = parse_allreduce_csv(clean, file)};
  const Source source = find_columns(table, options);
  BenchmarkRows rows;
  std::vector<size_t> wanted;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (!is_wanted(table, row, source, options)) continue;
    if (const std::string other = other_collective(table, row); !other.empty()) {
      rows.skip("rows of " + other, at_line(file, table.line(row)));
    } else {
      wanted.push_back(row);
    }
  }
  if (!wanted.empty()) check_one_setting(table, wanted, source);
  for (const size_t row : wanted) rows.rows.push_back(row_of(table, row, source, at_line(file, table.line(row))));
  const int64_t last_line = table.rows() > 0 ? table.line(table.rows() - 1) : 1;
  return import_rows(std::move(rows), options, "all-reduce times", at_line(file, last_line));
}

}  // namespace firkin
