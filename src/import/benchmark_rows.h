// What the readers of all-reduce times share: a text's lines and words, and what becomes of the rows that they find.
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
  int64_t world_size = 0;      // 0: the file does not say it
  std::string type = {};       // the elements' type, as the file names it: float, MPI_FLOAT; empty: not said
  std::string operation = {};  // sum, ...; empty: not said
};

// What is left out for one reason, which a note says.
struct SkippedRows {
  std::string what;  // "rows of the operation 'max'"
  int64_t count = 0;
  std::string first;  // "FILE:LINE" of the first
};

struct BenchmarkRows {
  std::vector<BenchmarkRow> rows = {};
  std::vector<SkippedRows> skipped = {};

  void skip(const std::string& what, const std::string& where);
};

// The rows of sums of one element type (options.dtype, float32, or the only one) as a table, with a note for each reason
// why rows were left out. Throws InputError when no row remains (naming the reason), types would mix, a size comes twice
// for as many ranks, nothing states the number of ranks, or a time or size is impossible. `expected`: what the file should
// have held, for messages.
Imported import_rows(BenchmarkRows found, const ImportOptions& options, const std::string& expected, const std::string& file);

// Whether this is the name of the all-reduce: all_reduce, AllReduce, Allreduce, all-reduce.
bool names_all_reduce(std::string_view name);

// For times whose file does not say of which collective they are: throws InputError unless the options do.
void require_collective(const ImportOptions& options, const std::string& where);

// The text, line by line, without byte-order mark, terminal colours, carriage returns and no-break spaces.
std::string undecorated(std::string_view text);

// Calls `take` with each line and its number, from 1.
void for_each_line(std::string_view text, const std::function<void(int64_t number, std::string_view line)>& take);

// The words between blanks. They are views of `line`.
std::vector<std::string_view> words_of(std::string_view line, std::string_view blanks = " \t");

// The first line that is neither empty nor a comment, and its number; line 1 if there is none.
std::pair<int64_t, std::string_view> first_line(std::string_view text);

// Whether a text without decoration (undecorated()) is of the format.
bool is_allreduce_csv(std::string_view text);
bool is_benchmark_log(std::string_view text);

}  // namespace firkin
