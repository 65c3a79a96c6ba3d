// What the readers of nccl-tests' table and of its JSON share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "benchmark_rows.h"

namespace firkin {

inline constexpr std::string_view kAllReduceProgram = "all_reduce";  // without _perf

// One result, as either format gives it.
struct NcclResult {
  Where where;
  std::string program = {};  // without _perf; empty: not named
  int64_t bytes = 0, count = 0;
  std::string type = {}, operation = {};
  int64_t root = -1;
  double time_us = 0;
  double algorithm_bandwidth = 0, bus_bandwidth = 0;  // GB/s
  double wrong = 0;                                   // elements, or the largest error; 0 too if they were not checked
  double most_wrong = 0;
  int64_t world_size = 0;  // 0: not stated
};

// Adds the all-reduce to the rows, or the reason for which it is left out. Throws InputError for wrong elements, and
// for bandwidths that contradict size and time, or the number of ranks.
void add_result(BenchmarkRows& rows, const NcclResult& result, const ImportOptions& options);

// The file that nccl-tests writes with -J, an object, and the records that rccl-tests writes, an array of objects, one
// for each size and place.
BenchmarkRows rows_of_json(std::string_view text, const std::string& file, const ImportOptions& options);
BenchmarkRows rows_of_records(std::string_view text, const std::string& file, const ImportOptions& options);

}  // namespace firkin
