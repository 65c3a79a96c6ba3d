// The tables of nccl-tests and rccl-tests, anywhere in a log.
//
// A row is found by its shape: two whole numbers and the name of an element type (size, count, type), whatever stands
// before them. What follows is read as the last header says. nccl-tests prints a row in pieces, between which other
// processes write lines of their own, so a row stays open until its columns are complete or another row begins.
//
// The file that nccl-tests writes with -J holds the same as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include "benchmark_rows.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

struct NcclResult {
  BenchmarkRow row;
  std::string program = {};  // without _perf; empty: not named
  int64_t count = 0, root = -1;
  double algorithm_bandwidth = 0, bus_bandwidth = 0;  // GB/s
  double wrong = 0;                                   // elements, or the largest error; 0 too if they were not checked
  double most_wrong = 0;
  std::array<bool, 2> unchecked = {};  // out-of-place results, in-place results
};

constexpr double kMicrosecond = 1e-6, kMillisecond = 1e-3, kGigabyte = 1e9;
constexpr const char* kExpectedRows = "the results of all_reduce_perf";

using Words = std::vector<std::string_view>;

struct ElementType {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array kTypes = {
    ElementType{"float", 4},    ElementType{"half", 2},     ElementType{"bfloat16", 2}, ElementType{"double", 8},
    ElementType{"int8", 1},     ElementType{"uint8", 1},    ElementType{"int32", 4},    ElementType{"uint32", 4},
    ElementType{"int64", 8},    ElementType{"uint64", 8},   ElementType{"f8e4m3", 1},   ElementType{"f8e5m2", 1},
    ElementType{"fp8_e4m3", 1}, ElementType{"fp8_e5m2", 1}, ElementType{"char", 1},     ElementType{"int", 4},
};
constexpr std::array<std::string_view, 7> kOperations = {"sum", "prod", "max", "min", "avg", "mulsum", "none"};

const ElementType* find_type(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &ElementType::name);
  return found == kTypes.end() ? nullptr : &*found;
}

// The collective of a result that is not of an all-reduce; empty if it is.
std::string other_collective(const NcclResult& result) {
  if (!result.program.empty() && collective_in(result.program) != "allreduce") return result.program + "_perf";
  if (result.row.operation.empty() || result.row.operation == "none") {
    return result.root >= 0 ? "a collective with a root and no reduction (broadcast_perf)"
                            : "a collective without reduction (all_gather_perf)";
  }
  if (result.root >= 0) return "a reduction to one rank (reduce_perf)";
  const ElementType* type = find_type(result.row.type);
  if (type && result.count > 0 && result.row.bytes / type->bytes != result.count) {
    return "a collective whose count is of one rank's part (reduce_scatter_perf)";
  }
  // These name an operation, too, and with two ranks have the bandwidths of an all-reduce.
  if (!result.unchecked[0] && result.unchecked[1]) return "a collective that is not checked in place (sendrecv_perf, alltoall_perf)";
  return "";
}

// Whether a printed number, rounded to two decimals or to three digits, may stand for this value.
bool agrees(double printed, double value) {
  constexpr double kRounding = 0.0051, kRelative = 0.01;
  return std::abs(printed - value) <= kRounding + kRelative * value;
}

void check_bandwidths(const NcclResult& result, int64_t world_size) {
  for (const double bandwidth : {result.algorithm_bandwidth, result.bus_bandwidth}) {
    if (!std::isfinite(bandwidth) || bandwidth < 0)
      fail(result.row.where, fmt::format("a bandwidth is {}; expected GB/s, at least 0", bandwidth));
  }
  const double measured = static_cast<double>(result.row.bytes) / result.row.seconds / kGigabyte;
  if (!agrees(result.algorithm_bandwidth, measured)) {
    fail(result.row.where,
         fmt::format("algbw is {} GB/s; expected {:.4g}, as size and time have it", result.algorithm_bandwidth, measured));
  }
  const double factor = 2 * static_cast<double>(world_size - 1) / static_cast<double>(world_size);
  // Not compared with the printed algbw: each is rounded by itself.
  if (agrees(result.bus_bandwidth, factor * measured)) return;
  fail(result.row.where, fmt::format("busbw is {:.4g} times algbw; expected {:.4g}, for an all-reduce of {} ranks",
                                     result.bus_bandwidth / result.algorithm_bandwidth, factor, world_size));
}

// Adds the all-reduce to the rows, or the reason for which it is left out. Throws InputError for wrong elements, and
// for bandwidths that contradict size and time, or the number of ranks.
void add_result(BenchmarkRows& rows, const NcclResult& result, const ImportOptions& options) {
  if (result.row.bytes < 0) fail(result.row.where, fmt::format("size is {}; expected at least 0", result.row.bytes));
  if (const std::string other = other_collective(result); !other.empty()) return rows.skip("rows of " + other, result.row.where);
  if (result.row.world_size == 1) return rows.skip("rows of one rank alone (was nccl-tests built with MPI=1?)", result.row.where);
  if (!(result.wrong <= result.most_wrong)) {
    fail(result.row.where, fmt::format("{} wrong; expected {} at most", result.wrong, result.most_wrong));
  }
  const int64_t world_size = result.row.world_size > 0 ? result.row.world_size : options.world_size;
  const bool was_measured = result.row.bytes > 0 && std::isfinite(result.row.seconds) && result.row.seconds > 0;
  if (was_measured && world_size > 1) check_bandwidths(result, world_size);
  rows.rows.push_back(result.row);
  rows.rows.back().world_size = world_size;  // which the bandwidths confirm
  if (world_size == 2 && result.program.empty() && result.unchecked[0] && result.unchecked[1]) {
    rows.rows.back().doubt = "two ranks and no checks, which sendrecv_perf prints alike; taken to be of all_reduce_perf";
  }
}

// The index at which a row starts; npos if there is none. Whole numbers may be too large for 64 bits.
size_t find_row(const Words& words) {
  const auto is_integer = [](std::string_view word) { return untagged(word).find_first_not_of("-0123456789") == std::string_view::npos; };
  for (size_t i = 2; i < words.size(); ++i) {
    if (find_type(words[i]) && is_integer(words[i - 2]) && is_integer(words[i - 1])) return i - 2;
  }
  return std::string_view::npos;
}

bool is_wrong_column(std::string_view name) {
  return name == "#wrong" || name == "error" || name == "res";
}

// The columns after the type, if the words are a header; NCCL 1's own test had other names for the first two. Columns
// that are not numbers (timestamp) come last and are not needed. "(us)" and "out-of-place" are no columns of their own.
std::optional<Words> columns_in(Words words) {
  std::erase_if(words, [](std::string_view word) { return word.starts_with('(') || word.ends_with("-place"); });
  for (size_t i = 2; i < words.size(); ++i) {
    const bool follows = (words[i - 2] == "size" && words[i - 1] == "count") || (words[i - 2] == "bytes" && words[i - 1] == "N");
    if (words[i] != "type" || !follows) continue;
    Words columns(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
    columns.erase(std::ranges::find(columns, "timestamp"), columns.end());
    return columns;
  }
  return std::nullopt;
}

// Whether the fields are the header of a table of nccl-tests and of nothing else: with columns of its own, or without
// the bandwidths, it is a CSV file as others write them.
bool is_csv_header(const Words& fields) {
  constexpr std::array<std::string_view, 10> kColumns = {"redop", "op",    "root",   "time",  "cputime",
                                                         "algbw", "busbw", "#wrong", "error", "res"};
  const std::optional<Words> columns = columns_in(fields);
  if (!columns || (fields[0] != "size" && fields[0] != "bytes" && fields[0] != "#")) return false;
  const auto has = [&](std::string_view name) { return std::ranges::count(*columns, name) > 0; };
  const auto is_known = [&](std::string_view name) { return std::ranges::find(kColumns, name) != kColumns.end(); };
  return (has("time") || has("cputime")) && has("algbw") && has("busbw") && std::ranges::all_of(*columns, is_known);
}

constexpr std::string_view kBetweenWords = " \t\r,;|";  // a table may be a CSV file, or one of Markdown

struct OpenRow {
  NcclResult result;
  Words columns, values;  // values: as many as were read
  bool in_place_first = false;
};

// Takes the words as the row's next values, as far as they fit its columns.
void take_values(OpenRow& row, std::span<const std::string_view> words) {
  for (const std::string_view word : words) {
    if (row.values.size() == row.columns.size()) break;
    std::string_view column = row.columns[row.values.size()];
    if (column == "redop" || column == "op") {
      // A line of another process may follow without a blank: "sumnode1:17:17 [0] NCCL INFO".
      const auto operation = std::ranges::find_if(kOperations, [&](std::string_view name) { return word.starts_with(name); });
      if (operation != kOperations.end()) {
        row.values.push_back(*operation);
        if (word != *operation) break;
        continue;
      }
      row.values.emplace_back();  // nothing is printed if there is no operation
      if (row.values.size() == row.columns.size()) break;
      column = row.columns[row.values.size()];
    }
    if (column == "root" || is_wrong_column(column)) {
      const size_t digits = std::min(word.find_first_not_of("-0123456789"), word.size());
      if (const std::string_view number = word.substr(0, digits); number == "-1" || (number == "0" && !parse_number<double>(word))) {
        row.values.push_back(number);
        if (number != word) break;
        continue;
      }
    }
    if (!parse_number<double>(word) && word != "N/A") break;
    row.values.push_back(word);
  }
}

// Takes the rest of a row from a later line, after lines of other processes. Some tag may stand before the numbers.
void continue_row(OpenRow& row, std::span<const std::string_view> words) {
  constexpr size_t kPiece = 4;  // nccl-tests prints time, bandwidths and errors at once
  if (row.values.size() >= row.columns.size() || row.columns[row.values.size()] != "time") return;
  for (; words.size() >= kPiece && words[0] != "NCCL"; words = words.subspan(1)) {
    OpenRow longer = row;
    take_values(longer, words);
    if (longer.values.size() < row.values.size() + kPiece) continue;
    row = std::move(longer);
    return;
  }
}

// The word in the column of one of these names, on that side of a table with both.
std::optional<std::string_view> value_in(const OpenRow& row, std::initializer_list<std::string_view> names, bool in_place) {
  const bool takes_second = in_place != row.in_place_first;
  std::optional<size_t> found;
  for (size_t i = 0; i < row.columns.size(); ++i) {
    if (std::ranges::find(names, row.columns[i]) == names.end()) continue;
    const bool is_second = found.has_value();
    found = i;
    if (!takes_second || is_second) break;
  }
  return found && *found < row.values.size() ? std::optional(row.values[*found]) : std::nullopt;
}

void finish_row(BenchmarkRows& rows, std::optional<OpenRow>& open, const ImportOptions& options) {
  if (!open) return;
  OpenRow row = std::move(*open);
  open.reset();
  const auto number = [&](std::initializer_list<std::string_view> names) -> std::optional<double> {
    const std::optional<std::string_view> word = value_in(row, names, options.in_place);
    return !word ? std::nullopt : *word == "N/A" ? 0 : parse_number<double>(*word);
  };
  NcclResult& result = row.result;
  result.row.operation = value_in(row, {"redop", "op"}, false).value_or("");
  result.root = tagged_integer(value_in(row, {"root"}, false).value_or("")).value_or(-1);
  if (std::ranges::count(row.columns, "cputime") > 0) return rows.skip("rows of CPU times (-C)", result.row.where);
  const auto time = number({"time"}), algorithm = number({"algbw"}), bus = number({"busbw"}), wrong = number({"#wrong", "error", "res"});
  if (!time || !algorithm || !bus || !wrong) {
    const std::string other = row.values.empty() ? "" : other_collective(result);
    if (!other.empty()) return rows.skip("rows of " + other, result.row.where);
    return rows.skip("rows that are cut off", result.row.where);
  }
  constexpr double kMostError = 0.05;  // relative: the bound of nccl-tests 2.10 for half
  const bool counts_wrong = std::ranges::count(row.columns, "#wrong") > 0;
  result.row.seconds = *time * (std::ranges::count(row.columns, "op") > 0 ? kMillisecond : kMicrosecond);  // op: NCCL 1
  result.algorithm_bandwidth = *algorithm;
  result.bus_bandwidth = *bus;
  result.wrong = *wrong;
  result.most_wrong = counts_wrong ? 0 : kMostError;
  const auto is_unchecked = [&](bool in_place) { return value_in(row, {"#wrong", "error", "res"}, in_place) == "N/A"; };
  result.unchecked = {is_unchecked(false), is_unchecked(true)};
  add_result(rows, result, options);
}

// The run that the lines of a log belong to.
struct Run {
  std::string program;
  std::set<int64_t> ranks;  // those of the first communicator
  bool split = false;       // whether there are several
  Words columns;
  bool in_place_first = false;  // whether the columns of in-place times come before the others

  int64_t world_size() const {
    if (ranks.empty()) return 0;
    return split ? static_cast<int64_t>(ranks.size()) : *ranks.rbegin() + 1;
  }
};

// The collective whose program a line starts, as nccl-tests says it or as a command line with options, where other words
// may end in _perf (srun --job-name=nccl_perf --ntasks=8 all_reduce_perf -b 8); empty if none.
std::string program_in(const Words& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view file = words[i].substr(words[i].find_last_of('/') + 1), name = file.substr(0, file.find("_perf"));
    if (name == file) continue;
    const bool started = i > 0 && words[i - 1] == "starting:";
    const bool has_options = i + 1 < words.size() && words[i + 1].starts_with('-');
    if (started || (has_options && !collective_in(name).empty())) return std::string(name);
  }
  return "";
}

// # Rank  0 Group  0 Pid  17 on  host device  0 [0x07] NVIDIA A100-SXM4-40GB
void read_device(Run& run, const Words& words) {
  const auto rank = std::ranges::find(words, "Rank");
  if (std::ranges::find(words, "device") == words.end() || words.end() - rank < 4) return;
  const auto number = tagged_integer(rank[1]);
  if (!number || *number < 0) return;
  if (rank[2] == "Group" && rank[3] != "0") {
    run.split = true;
  } else {
    run.ranks.insert(*number);
  }
}

// Reads which side of a table is on the left from the line above its header, or from the header itself.
void read_sides(Run& run, const Words& words) {
  const auto in_place = std::ranges::find(words, "in-place"), out_of_place = std::ranges::find(words, "out-of-place");
  if (in_place != words.end() && out_of_place != words.end()) run.in_place_first = in_place < out_of_place;
}

BenchmarkRows rows_of_table(std::string_view text, const std::string& file, const ImportOptions& options) {
  BenchmarkRows rows;
  Run run;
  std::optional<OpenRow> open;
  for_each_line(text, [&](int64_t number, std::string_view line) {
    const Words words = words_of(line, kBetweenWords);
    read_sides(run, words);
    if (const std::string program = program_in(words); !program.empty()) {
      run = {.program = program, .ranks = {}, .columns = {}};
    } else if (std::ranges::count(words, "nThread") > 0) {
      run = {.program = run.program, .ranks = {}, .columns = {}};
    } else if (const std::optional<Words> columns = columns_in(words)) {
      run.columns = *columns;
    } else if (const size_t begin = find_row(words); begin != std::string_view::npos) {
      finish_row(rows, open, options);
      if (run.columns.empty()) return rows.skip("rows without a header before them", at_line(file, number));
      const auto bytes = tagged_integer(words[begin]), count = tagged_integer(words[begin + 1]);
      if (!bytes || !count) return rows.skip("rows whose size does not fit into 64 bits", at_line(file, number));
      const std::string type(words[begin + 2]);
      open = {.result = {.row = {.where = at_line(file, number), .bytes = *bytes, .world_size = run.world_size(), .type = type},
                         .program = run.program,
                         .count = *count},
              .columns = run.columns,
              .values = {},
              .in_place_first = run.in_place_first};
      take_values(*open, std::span(words).subspan(begin + 3));
    } else {
      read_device(run, words);
      if (open) continue_row(*open, words);
    }
  });
  finish_row(rows, open, options);
  return rows;
}

BenchmarkRows rows_of_json(const std::string& text, const std::string& file, const ImportOptions& options) {
  using Json = nlohmann::json;
  constexpr const char* kExpectedJson = "what all_reduce_perf writes with -J, or the log that it prints";
  const Json log = parse_json(text, file, kExpectedJson);
  const auto count_of = [](const Json& value) { return value.get_ref<const uint64_t&>(); };  // throws for other numbers
  BenchmarkRows rows;
  try {
    const Json& config = log.at("config");
    const Json& devices = config.at("devices");
    // Each process lists its first device alone.
    const auto is_of_first_group = [&](const Json& device) { return device.at("group") == devices.at(0).at("group"); };
    const uint64_t world_size = static_cast<uint64_t>(std::ranges::count_if(devices, is_of_first_group)) * count_of(config.at("nthreads")) *
                                count_of(config.at("ngpus"));
    const std::string program = program_in({"starting:", log.at("args").at(0).get_ref<const std::string&>()});
    const Json& results = log.at("results");
    for (size_t i = 0; i < results.size(); ++i) {
      const Json& side = results[i].at(options.in_place || results[i].at("out_of_place").is_null() ? "in_place" : "out_of_place");
      NcclResult result{.row = {.where = fmt::format("{}: result {}", file, i + 1),
                                .bytes = static_cast<int64_t>(count_of(results[i].at("size"))),
                                .world_size = static_cast<int64_t>(world_size),
                                .type = results[i].at("type").get<std::string>(),
                                .operation = results[i].at("redop").get<std::string>()},
                        .program = program,
                        .count = static_cast<int64_t>(count_of(results[i].at("count"))),
                        .root = results[i].at("root").get<std::string>().ends_with("-1") ? -1 : 0};
      if (side.contains("cpu_time")) {
        rows.skip("rows of CPU times (-C)", result.row.where);
        continue;
      }
      result.row.seconds = kMicrosecond * side.at("time").get<double>();
      result.algorithm_bandwidth = side.at("alg_bw").get<double>();
      result.bus_bandwidth = side.at("bus_bw").get<double>();
      if (!side.at("nwrong").is_null()) result.wrong = side.at("nwrong").get<double>();
      const auto is_unchecked = [](const Json& one_side) { return !one_side.is_null() && one_side.at("nwrong").is_null(); };
      result.unchecked = {is_unchecked(results[i].at("out_of_place")), is_unchecked(results[i].at("in_place"))};
      add_result(rows, result, options);
    }
  } catch (const Json::exception&) {
    fail(file, fmt::format("JSON of another kind; expected {}", kExpectedJson));
  }
  return rows;
}

}  // namespace

bool is_json(std::string_view text) {
  const size_t begin = text.find_first_not_of("[ \n\t");  // rccl-tests writes an array
  return begin != std::string_view::npos && text[begin] == '{';
}

bool is_nccl_tests_header(std::string_view line) {
  return columns_in(words_of(line, " \t\r|")) || is_csv_header(words_of(line, kBetweenWords));
}

bool is_nccl_tests_row(std::string_view line) {
  return find_row(words_of(line, " \t\r|")) != std::string_view::npos;
}

Imported parse_nccl_tests(std::string_view text, const std::string& file, const ImportOptions& options) {
  const std::string clean = undecorated(text);
  const auto last_line = 1 + std::count(clean.begin(), clean.empty() ? clean.end() : clean.end() - 1, '\n');
  BenchmarkRows rows = is_json(clean) ? rows_of_json(clean, file, options) : rows_of_table(clean, file, options);
  return import_rows(std::move(rows), options, kExpectedRows, at_line(file, last_line));
}

}  // namespace firkin
