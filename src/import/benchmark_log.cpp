// Logs of all-reduce benchmarks: nccl-tests and rccl-tests, OSU's and Intel's MPI benchmarks, oneCCL's.
//
// Every log goes the same way. A title names the collective of the next table; other lines say its number of ranks and
// the type of its elements. A header, one of `kHeaders`, begins the table, and a line that begins with a whole number
// is a row of it. As many words may stand before a row as before its header: a launcher's tag, a time stamp. A row must
// have the header's columns and nothing else, since other output may have cut it anywhere.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include "benchmark_rows.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr double kMicrosecond = 1e-6, kMillisecond = 1e-3, kGigabyte = 1e9;
constexpr std::string_view kAllReduces = "all_reduce_perf, osu_allreduce or IMB-MPI1's Allreduce";

using Words = std::vector<std::string_view>;

// A table's header, and what its columns hold. Of two columns of one name the second belongs to in-place all-reduces.
struct Header {
  std::string_view words, columns;
  double unit_s = kMicrosecond;
};
constexpr std::array kHeaders = {
    // nccl-tests and rccl-tests; those of 2021 and before; NCCL 1's own test.
    Header{"# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
           "bytes count type redop root time algbw busbw wrong time algbw busbw wrong"},
    Header{"# size count type redop root time algbw busbw error time algbw busbw error",
           "bytes count type redop root time algbw busbw error time algbw busbw error"},
    Header{"# size count type redop time algbw busbw error time algbw busbw error",
           "bytes count type redop time algbw busbw error time algbw busbw error"},
    Header{"# bytes N type op time algbw busbw res time algbw busbw res",
           "bytes count type redop time algbw busbw error time algbw busbw error", kMillisecond},
    // OSU, plain, with --full and with --validation.
    Header{"# Size Latency (us)", "bytes time"},
    Header{"# Size Avg Latency(us)", "bytes time"},
    Header{"# Size Avg Latency(us) Validation", "bytes time wrong"},
    Header{"# Size Avg Latency(us) Min Latency(us) Max Latency(us) Iterations", "bytes time min max repetitions"},
    Header{"# Size Avg Latency(us) Min Latency(us) Max Latency(us) Iterations Validation", "bytes time min max repetitions wrong"},
    // IMB-MPI1; oneCCL.
    Header{"#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec]", "bytes repetitions min max time"},
    Header{"#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec] defects", "bytes repetitions min max time wrong"},
    Header{"#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec] stddev[%]", "bytes repetitions min max time deviation"},
    Header{"#bytes elem_count #repetitions t_min[usec] t_max[usec] t_avg[usec] stddev[%]",
           "bytes count repetitions min max time deviation"},
};

// How a header begins, be it known or not.
constexpr std::array<std::string_view, 4> kHeaderBegins = {" # size count type ", " # bytes N type ", " # Size ", " #bytes "};

// How a title begins, up to the blank before the collective's name, and what follows the name.
struct Title {
  std::string_view begin, end;
};
constexpr std::array kTitles = {
    Title{" # Collective test starting", "_perf"},  // ": all_reduce_perf_mpi"
    Title{" # OSU ", " Latency Test"},              // "MPI-CUDA Allreduce Latency Test v7.3"
    Title{" # Benchmarking", "\n"},                 // " Allreduce" is IMB's, ": allreduce" oneCCL's
};
constexpr std::array<std::string_view, 10> kPrograms = {"all_reduce", "all_gather", "alltoall",       "broadcast", "gather",
                                                        "hypercube",  "reduce",     "reduce_scatter", "scatter",   "sendrecv"};

struct ElementType {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array kElementTypes = {
    ElementType{"float", 4},    ElementType{"half", 2},     ElementType{"bfloat16", 2}, ElementType{"double", 8},
    ElementType{"int8", 1},     ElementType{"uint8", 1},    ElementType{"int32", 4},    ElementType{"uint32", 4},
    ElementType{"int64", 8},    ElementType{"uint64", 8},   ElementType{"f8e4m3", 1},   ElementType{"f8e5m2", 1},
    ElementType{"fp8_e4m3", 1}, ElementType{"fp8_e5m2", 1}, ElementType{"char", 1},     ElementType{"int", 4},
};

const ElementType* find_type(std::string_view name) {
  const auto found = std::ranges::find(kElementTypes, name, &ElementType::name);
  return found == kElementTypes.end() ? nullptr : &*found;
}

// What the log says about its next table.
struct TableFacts {
  std::string collective = {};   // empty: not said
  std::set<int64_t> ranks = {};  // those of the listed devices
  bool split = false;            // whether the devices belong to several communicators
  int64_t processes = 0;
  std::string type = {}, operation = {};  // of its elements, where rows do not say it

  // The number of ranks; 0 if it is not said.
  int64_t world_size() const {
    const auto count = static_cast<int64_t>(ranks.size());
    return count > 0 && !split && *ranks.begin() == 0 && *ranks.rbegin() == count - 1 ? count : processes;
  }
};

struct Table {
  const Header* header = nullptr;  // null: of another collective, and left out
  Words columns = {};
  size_t words_before = 0;  // how many words of a tag or a time stamp stand before each row
  TableFacts facts = {};
};

// A row's words by the names of their columns.
struct Values {
  const Words& columns;
  std::span<const std::string_view> words;
  bool in_place = false;
  std::string where;

  // Empty if there is no such column.
  std::string_view text(std::string_view column) const {
    std::string_view found;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] == column && (found.empty() || in_place)) found = words[i];
    }
    return found;
  }
  template <class Number>
  Number number(std::string_view column) const {
    const auto value = parse_number<Number>(text(column));
    if (!value) fail(where, fmt::format("{} is '{}'; expected a number", column, text(column)));
    return *value;
  }
};

// Throws InputError if the row, of nccl-tests, says that it is of another collective.
void check_all_reduce(const Values& values, int64_t bytes) {
  const ElementType* type = find_type(values.text("type"));
  if (!type) fail(values.where, fmt::format("unknown element type '{}'", values.text("type")));
  if (values.text("redop") == "none") fail(values.where, "a collective without reduction; expected all-reduces");
  if (const std::string_view root = values.text("root"); !root.empty() && root != "-1") {
    fail(values.where, fmt::format("the root is {}; expected -1, as all-reduces have it", root));
  }
  const int64_t count = values.number<int64_t>("count"), all = bytes / type->bytes;
  if (count != all) fail(values.where, fmt::format("{} elements in {} bytes; expected {}, as all-reduces have it", count, bytes, all));
}

void check_correct(const Values& values) {
  constexpr double kMostError = 0.05;  // relative: the bound of nccl-tests 2.10 for half
  for (const auto& [column, most] : {std::pair{"wrong", 0.0}, {"error", kMostError}}) {
    const std::string_view text = values.text(column);
    if (text.empty() || text == "N/A" || text == "Pass") continue;
    const bool is_correct = text != "Fail" && values.number<double>(column) <= most;
    if (!is_correct) fail(values.where, fmt::format("{} is {}; expected correct results", column, text));
  }
}

// Bandwidths follow from size, time and the number of ranks: where they do not, one of these is wrong.
void check_bandwidths(const Values& values, const BenchmarkRow& row, int64_t world_size) {
  // Printed with two decimals or three digits.
  const auto agrees = [](double printed, double value) { return std::abs(printed - value) <= 0.0051 + 0.01 * value; };
  const double algorithm = values.number<double>("algbw"), bus = values.number<double>("busbw");
  const double measured = static_cast<double>(row.bytes) / row.seconds / kGigabyte;
  if (!agrees(algorithm, measured)) {
    fail(row.where, fmt::format("algbw is {} GB/s; expected {:.4g}, as size and time have it", algorithm, measured));
  }
  if (world_size < 2) return;
  const double expected = 2 * static_cast<double>(world_size - 1) / static_cast<double>(world_size) * measured;
  if (agrees(bus, expected)) return;
  fail(row.where, fmt::format("busbw is {} GB/s; expected {:.4g}, for an all-reduce of {} ranks", bus, expected, world_size));
}

// Throws InputError if it is not a row of an all-reduce, or not a correct one.
BenchmarkRow row_of(const Table& table, const Values& values, const ImportOptions& options) {
  const TableFacts& facts = table.facts;
  BenchmarkRow row = {.where = values.where, .world_size = facts.world_size(), .type = facts.type, .operation = facts.operation};
  row.bytes = values.number<int64_t>("bytes");
  row.seconds = values.number<double>("time") * table.header->unit_s;
  if (!values.text("type").empty()) {
    row.type = values.text("type");
    row.operation = values.text("redop");
    check_all_reduce(values, row.bytes);
    if (row.bytes > 0 && row.seconds > 0) check_bandwidths(values, row, row.world_size > 0 ? row.world_size : options.world_size);
  }
  check_correct(values);
  return row;
}

// The words, each behind one blank, without what mpirun puts before a line: "[1,0]<stdout>:".
std::string single_spaced(std::string_view line) {
  constexpr std::string_view kTag = "<stdout>:";
  if (const size_t tag = line.find(kTag); tag != std::string_view::npos) line.remove_prefix(tag + kTag.size());
  return fmt::format(" {}", fmt::join(words_of(line), " "));
}

std::optional<std::string_view> header_in(std::string_view line) {
  for (const std::string_view begin : kHeaderBegins) {
    if (const size_t found = line.find(begin); found != std::string_view::npos) return line.substr(found + 1);
  }
  return std::nullopt;
}

// The collective that a benchmark's title names.
std::optional<std::string_view> title_in(std::string_view line) {
  for (const auto& [begin, end] : kTitles) {
    const size_t found = line.find(begin);
    if (found == std::string_view::npos) continue;
    const size_t blank = std::min(line.find(' ', found + begin.size()), line.size() - 1);
    const std::string_view name = line.substr(blank + 1);
    return name.substr(0, name.find(end));
  }
  return std::nullopt;
}

// The collective whose program of nccl-tests a command line starts: "srun ./build/all_reduce_perf -b 8".
std::optional<std::string_view> command_in(const Words& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string_view file = words[i].substr(words[i].find_last_of('/') + 1), name = file.substr(0, file.find("_perf"));
    const bool is_program = name != file && std::ranges::find(kPrograms, name) != kPrograms.end();
    if (is_program && words[i + 1].starts_with('-')) return name;
  }
  return std::nullopt;
}

bool is_whole(std::string_view word) {
  if (word.starts_with('-')) word.remove_prefix(1);
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

// Whether size, count and type stand in the line, as in a row of nccl-tests.
bool holds_nccl_row(const Words& words) {
  for (size_t i = 2; i < words.size(); ++i) {
    if (find_type(words[i]) && is_whole(words[i - 2]) && is_whole(words[i - 1])) return true;
  }
  return false;
}

void read_statement(TableFacts& facts, std::string_view line, const Words& words) {
  const auto rank = std::ranges::find(words, "Rank");  // "# Rank  0 Group  0 Pid  17 on host device  0 [0x07] NVIDIA A100"
  if (words.end() - rank > 3 && std::ranges::find(words, "device") != words.end()) {
    if (const auto number = parse_number<int64_t>(rank[1])) facts.ranks.insert(*number);
    facts.split = facts.split || (rank[2] == "Group" && rank[3] != "0");
  }
  const Words parts = words_of(line, " :=.");  // "# Datatype: MPI_FLOAT.", "# #processes = 8"
  if (parts.size() < 2) return;
  const std::string_view name = parts[parts.size() - 2], value = parts.back();
  if (name == "Datatype" || name == "reductions" || name == "datatype") facts.type = value;
  if (name == "reduction") facts.operation = value;
  if (name == "#processes") facts.processes = parse_number<int64_t>(value).value_or(0);
}

// The table that a header begins.
Table begin_table(BenchmarkRows& rows, const TableFacts& facts, std::string_view line, std::string_view header, const std::string& where,
                  const ImportOptions& options) {
  if (!facts.collective.empty() && !names_all_reduce(facts.collective)) {
    rows.skip("tables of " + facts.collective, where);
    return {};
  }
  const auto known = std::ranges::find(kHeaders, header, &Header::words);
  if (known == kHeaders.end()) fail(where, fmt::format("unknown columns '{}'; expected those of {}", header, kAllReduces));
  if (facts.collective.empty()) require_collective(options, where);
  const size_t words_before = words_of(line).size() - words_of(header).size();
  return {.header = &*known, .columns = words_of(known->columns), .words_before = words_before, .facts = facts};
}

BenchmarkRows rows_of_log(std::string_view text, const std::string& file, const ImportOptions& options) {
  BenchmarkRows rows;
  TableFacts facts;
  std::optional<Table> table;
  const auto forget = [&] { facts = {.type = facts.type, .operation = facts.operation}; };  // IMB names these once
  for_each_line(text, [&](int64_t number, std::string_view raw) {
    const std::string line = single_spaced(raw), where = at_line(file, number);
    const Words words = words_of(line);
    const std::optional<std::string_view> title = title_in(line), collective = title ? title : command_in(words);
    const bool is_left_out = table && !table->header;  // rows of another collective's table
    if (collective) {
      forget();
      facts.collective = *collective;
      table.reset();
    } else if (const auto header = header_in(line)) {
      table = begin_table(rows, facts, line, *header, where, options);
      forget();
    } else if (table && !is_left_out && words.size() > table->words_before && is_whole(words[table->words_before])) {
      const auto values = std::span(words).subspan(table->words_before);
      if (values.size() != table->columns.size()) {
        fail(where, fmt::format("a row of {} values; expected {}, as its header has", values.size(), table->columns.size()));
      }
      if (table->facts.world_size() == 1) return rows.skip("rows of one rank alone (was nccl-tests built with MPI=1?)", where);
      rows.rows.push_back(row_of(*table, {table->columns, values, options.in_place, where}, options));
    } else if (!is_left_out && holds_nccl_row(words)) {
      fail(where, "a row behind other words, or without a header; expected the log as nccl-tests prints it");
    } else if (!is_left_out && line.find(" in-place") < line.find(" out-of-place") && line.find(" out-of-place") != std::string::npos) {
      fail(where, "in-place before out-of-place; expected the log as nccl-tests prints it");
    } else {
      read_statement(facts, line, words);
    }
  });
  return rows;
}

}  // namespace

bool is_benchmark_log(std::string_view text) {
  bool is_log = false;
  for_each_line(text, [&](int64_t, std::string_view raw) {
    const std::string line = single_spaced(raw);
    is_log = is_log || title_in(line) || header_in(line);
  });
  return is_log;
}

Imported parse_benchmark_log(std::string_view text, const std::string& file, const ImportOptions& options) {
  return import_rows(rows_of_log(undecorated(text), file, options), options, fmt::format("the results of {}", kAllReduces), file);
}

}  // namespace firkin
