#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "import.h"

namespace firkin {
namespace {

constexpr double kMicrosecond = 1e-6;
constexpr size_t kShownCharacters = 40;  // of a bad field, in a message
constexpr std::string_view kProgram = "all_reduce_perf";
constexpr const char* kExpectedOutput = "what nccl-tests prints, or writes with -J";

// Says "FILE:LINE", or "FILE:LINE: results[3]". A function, because the line of a JSON value takes a pass over the text.
using Where = std::function<std::string()>;

// One result, as either format gives it.
struct Result {
  Where where;
  int64_t bytes = 0;
  double time_us = 0;
  double algorithm_bandwidth = 0;  // GB/s
  double bus_bandwidth = 0;
  std::optional<double> wrong;  // elements; absent when they were not checked
};

[[noreturn]] void fail(const Where& where, const std::string& message) {
  throw InputError(where() + ": " + message);
}

Where at_line(const std::string& file, int64_t line) {
  return [file, line] { return fmt::format("{}:{}", file, line); };
}

// Printable, whatever the file holds.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kShownCharacters)) result += (c >= 0x20 && c < 0x7f) ? c : '?';
  return text.size() > kShownCharacters ? result + "..." : result;
}

template <typename Number>
Number parsed(std::string_view text, const Where& where, const char* what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    fail(where, fmt::format("{} is '{}'; expected a number", what, shown(text)));
  return value;
}

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  for (size_t begin = line.find_first_not_of(kBlanks); begin != std::string_view::npos; begin = line.find_first_not_of(kBlanks)) {
    line.remove_prefix(begin);
    const size_t length = std::min(line.find_first_of(kBlanks), line.size());
    words.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
  return words;
}

// Where a table's columns are, counted in words from the left.
struct Columns {
  size_t size = 0, time = 0, algorithm_bandwidth = 0, bus_bandwidth = 0, wrong = 0;
  size_t count = 0;
};

// From the words of the header line behind its #. The out-of-place columns come first.
Columns columns_of(const std::vector<std::string_view>& header, bool in_place, const Where& where) {
  const auto column = [&](std::string_view name, int occurrence) {
    auto found = header.begin();
    for (int i = 0;; ++i, ++found) {
      found = std::find(found, header.end(), name);
      if (found == header.end()) break;
      if (i == occurrence) return static_cast<size_t>(found - header.begin());
    }
    if (name == "time" && std::ranges::count(header, "cputime") > 0) {
      fail(where, "the times are CPU times (-C); expected a run without that option");
    }
    fail(where, fmt::format("no {} column '{}'; expected the table of {}", in_place ? "in-place" : "out-of-place", name, kProgram));
  };
  const int side = in_place ? 1 : 0;
  const bool named_errors = std::ranges::count(header, "error") > 0;  // before nccl-tests 2.11
  return {.size = column("size", 0),
          .time = column("time", side),
          .algorithm_bandwidth = column("algbw", side),
          .bus_bandwidth = column("busbw", side),
          .wrong = column(named_errors ? "error" : "#wrong", side),
          .count = header.size()};
}

Result result_of(const std::vector<std::string_view>& words, const Columns& columns, const Where& where) {
  if (words.size() < columns.count) {
    fail(where, fmt::format("{} values; expected {}, as in the header", words.size(), columns.count));
  }
  Result result{.where = where,
                .bytes = parsed<int64_t>(words[columns.size], where, "size"),
                .time_us = parsed<double>(words[columns.time], where, "time"),
                .algorithm_bandwidth = parsed<double>(words[columns.algorithm_bandwidth], where, "algbw"),
                .bus_bandwidth = parsed<double>(words[columns.bus_bandwidth], where, "busbw"),
                .wrong = {}};
  if (words[columns.wrong] != "N/A") result.wrong = parsed<double>(words[columns.wrong], where, "#wrong");
  return result;
}

void check_program(std::string_view comment, const Where& where) {
  constexpr std::string_view kStart = "Collective test starting:";
  const size_t start = comment.find(kStart);
  if (start == std::string_view::npos) return;
  const std::vector<std::string_view> words = words_of(comment.substr(start + kStart.size()));
  if (words.empty() || !words[0].ends_with(kProgram)) {
    fail(where, fmt::format("the test is '{}'; expected {}", words.empty() ? "" : shown(words[0]), kProgram));
  }
}

std::vector<Result> results_of_table(std::string_view text, const std::string& file, bool in_place, std::vector<std::string>& notes) {
  std::vector<Result> results;
  std::optional<Columns> columns;
  int64_t log_lines = 0;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const Where where = at_line(file, number);
    if (line.size() > kLongestCsvLine)
      fail(where, fmt::format("the line is longer than {} bytes; expected {}", kLongestCsvLine, kExpectedOutput));
    std::vector<std::string_view> words = words_of(line);
    if (words.empty()) continue;
    if (words[0].starts_with('#')) {
      check_program(line, where);
      words.erase(words.begin());
      if (!words.empty() && words[0] == "size") columns = columns_of(words, in_place, where);
    } else if (line.find("NCCL INFO") != std::string_view::npos || line.find("NCCL WARN") != std::string_view::npos) {
      ++log_lines;
    } else if (!columns) {
      fail(where, fmt::format("'{}' before the table's header; expected # size count type redop ...", shown(line)));
    } else {
      results.push_back(result_of(words, *columns, where));
    }
  }
  if (!columns) fail(at_line(file, 1), fmt::format("no header; expected the table of {}: # size count type redop ...", kProgram));
  if (log_lines > 0) notes.push_back(fmt::format("skipped {} log lines of NCCL", log_lines));
  return results;
}

double number_of(const nlohmann::json& object, const char* key, const Where& where) {
  if (!object.contains(key) || !object[key].is_number()) fail(where, fmt::format("{} is missing or no number; expected a number", key));
  return object[key].get<double>();
}

Result result_of(const nlohmann::json& row, bool in_place, const Where& where) {
  const char* side = in_place ? "in_place" : "out_of_place";
  if (!row.is_object() || !row.contains("size") || !row["size"].is_number_integer()) fail(where, "no whole number 'size'");
  if (row["size"].is_number_unsigned() && row["size"].get<uint64_t>() > INT64_MAX) fail(where, "size does not fit into 64 bits");
  if (!row.contains(side) || !row[side].is_object()) fail(where, fmt::format("no object '{}'", side));
  const nlohmann::json& values = row[side];
  if (values.contains("cpu_time")) fail(where, "the time is CPU time (-C); expected a run without that option");
  Result result{.where = where,
                .bytes = row["size"].get<int64_t>(),
                .time_us = number_of(values, "time", where),
                .algorithm_bandwidth = number_of(values, "alg_bw", where),
                .bus_bandwidth = number_of(values, "bus_bw", where),
                .wrong = {}};
  if (values.contains("nwrong") && !values["nwrong"].is_null()) result.wrong = number_of(values, "nwrong", where);
  return result;
}

std::vector<Result> results_of_json(std::string_view text, const std::string& file, bool in_place) {
  const nlohmann::json json = parse_json(text, file, kExpectedOutput);
  const auto at = [text, file](const std::string& path) -> Where {
    return [=] { return fmt::format("{}:{}", file, json_line_of(text, path)); };
  };
  if (json.contains("args") && json["args"].is_array() && !json["args"].empty() && json["args"][0].is_string()) {
    const auto program = json["args"][0].get<std::string>();
    if (!program.ends_with(kProgram)) fail(at("args[0]"), fmt::format("args[0] is '{}'; expected {}", shown(program), kProgram));
  }
  if (!json.contains("results") || !json["results"].is_array()) {
    fail(at("results"), fmt::format("no array 'results'; expected {}", kExpectedOutput));
  }
  std::vector<Result> results;
  for (const nlohmann::json& row : json["results"]) {
    const std::string path = fmt::format("results[{}]", results.size());
    results.push_back(result_of(row, in_place, [at, path] { return fmt::format("{}: {}", at(path)(), path); }));
  }
  return results;
}

// Both bandwidths are rounded to two digits after the point: only large ones say something.
void check_world(const Result& result, int64_t world_size) {
  constexpr double kLeastBandwidth = 5;
  constexpr double kTolerance = 0.01;
  for (const double bandwidth : {result.algorithm_bandwidth, result.bus_bandwidth}) {
    if (!std::isfinite(bandwidth) || bandwidth < 0)
      fail(result.where, fmt::format("a bandwidth is {}; expected GB/s, at least 0", bandwidth));
  }
  if (result.algorithm_bandwidth < kLeastBandwidth) return;
  const double ratio = result.bus_bandwidth / result.algorithm_bandwidth;
  const auto world = static_cast<double>(world_size);
  const double expected = 2 * (world - 1) / world;
  if (std::abs(ratio / expected - 1) <= kTolerance) return;
  fail(result.where,
       fmt::format("busbw is {:.4g} times algbw; expected {:.4g}, for an all-reduce of {} ranks", ratio, expected, world_size));
}

void append_row(Imported& imported, const Result& result, int64_t world_size, int64_t& empty) {
  if (result.bytes < 0) fail(result.where, fmt::format("size is {}; expected at least 0", result.bytes));
  if (result.wrong.value_or(0) != 0) fail(result.where, fmt::format("{} wrong elements; expected 0", *result.wrong));
  if (result.bytes == 0) {
    ++empty;
    return;
  }
  const double seconds = result.time_us * kMicrosecond;
  if (const char* expected = expected_of_measured(seconds)) {
    fail(result.where, fmt::format("time is {} us; expected {}", result.time_us, expected));
  }
  check_world(result, world_size);
  imported.table.push_back({.bytes = result.bytes, .world_size = world_size, .median_s = seconds, .mean_s = seconds});
}

}  // namespace

Imported parse_nccl_tests(std::string_view text, const std::string& file, const ImportOptions& options) {
  if (options.world_size < 2) {
    throw InputError(fmt::format("{}:1: {}, which does not state the number of ranks; expected --world, at least 2", file,
                                 name_of(ImportFormat::kNcclTests)));
  }
  Imported imported;
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && text[first] == '{';
  const std::vector<Result> results =
      json ? results_of_json(text, file, options.in_place) : results_of_table(text, file, options.in_place, imported.notes);
  int64_t empty = 0;
  for (const Result& result : results) append_row(imported, result, options.world_size, empty);
  if (imported.table.empty()) {
    const auto last_line = 1 + std::count(text.begin(), text.empty() ? text.end() : text.end() - 1, '\n');
    fail(at_line(file, last_line), fmt::format("no measurements; expected the results of {}", kProgram));
  }
  if (empty > 0) imported.notes.push_back(fmt::format("skipped {} results of 0 bytes", empty));
  return imported;
}

}  // namespace firkin
