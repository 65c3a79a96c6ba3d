// What readers of benchmarks' output share: lines without decoration, and the choice among the rows found.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "import.h"

namespace firkin {

std::string at_line(const std::string& file, int64_t line);  // "FILE:LINE"

// Throws InputError: "WHERE: message".
[[noreturn]] void fail(const std::string& where, const std::string& message);

// One all-reduce of one size.
struct BenchmarkRow {
  std::string where;  // "FILE:LINE"
  int64_t bytes = 0;
  double seconds = 0;
  std::optional<double> stdev_s = {};
  int64_t world_size = 0;      // 0: the output does not say it
  std::string type = {};       // the elements' type, as the benchmark names it: float, MPI_FLOAT; empty if it does not
  std::string operation = {};  // sum, ...; empty: not said
  std::string doubt = {};      // what a note says of the first row with it
};

// Rows that are left out for one reason.
struct SkippedRows {
  std::string what;  // "rows of reduce_scatter_perf"
  int64_t count = 0;
  std::string first;  // where the first is
};

struct BenchmarkRows {
  std::vector<BenchmarkRow> rows = {};
  std::vector<SkippedRows> skipped = {};

  void skip(const std::string& what, const std::string& where);
};

// The rows as a table of one element type (options.dtype, float32, or the only one) and one operation (sum, or the only
// one), with a note for each reason why rows were left out or are in doubt. Throws InputError when no row is left (naming
// the reason), types or operations would mix, nothing states the number of ranks, or a time or size is impossible.
// `expected`: what the file should hold; `end`: where it ends.
Imported import_rows(BenchmarkRows found, const ImportOptions& options, const std::string& expected, const std::string& end);

// The text without byte-order mark, terminal colours, carriage returns and blanks beyond ASCII; line breaks stay where
// they are. UTF-16 with a byte-order mark becomes ASCII.
std::string undecorated(std::string_view text);

// Calls `take` with each line and its number, from 1.
void for_each_line(std::string_view text, const std::function<void(int64_t number, std::string_view line)>& take);

std::vector<std::string_view> words_of(std::string_view line, std::string_view blanks = " \t\r");

// The word without the tag that mpirun may have put before the line, "[1,0]<stdout>:8", and that as a whole number.
std::string_view untagged(std::string_view word);
std::optional<int64_t> tagged_integer(std::string_view word);

// The collective that a word names, in small letters alone: "allreduce" for all_reduce_perf and AllReduce; empty if none.
// For a kernel its whole name: "devkernelallreducesum".
std::string collective_in(std::string_view word);

// Whether a line is the header or a row of a table of nccl-tests or rccl-tests, the header of a CSV file with a column
// of sizes.
bool is_nccl_tests_header(std::string_view line);
bool is_nccl_tests_row(std::string_view line);
bool is_json(std::string_view text);  // as nccl-tests writes it with -J
bool is_allreduce_csv_header(std::string_view line);

// The benchmark that a line of OSU's or Intel's MPI benchmarks begins: "OSU's Allreduce", "IMB's Reduce"; empty if none.
std::string mpi_title_in(std::string_view line);
bool is_mpi_allreduce(std::string_view title);

}  // namespace firkin
