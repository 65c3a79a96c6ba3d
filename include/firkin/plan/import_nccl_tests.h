// The output of nccl-tests' all_reduce_perf: the table that it prints, or the JSON file that it writes with -J.
//
//   const NcclTestsTable imported = read_nccl_tests("all_reduce.txt", {.world_size = 16});
//   write_allreduce_csv("allreduce.csv", imported.table);
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/plan/allreduce_table.h"

namespace firkin {

struct NcclTestsOptions {
  int64_t world_size = 0;  // at least 2
  bool in_place = false;   // the in-place columns, rather than the out-of-place ones
};

struct NcclTestsTable {
  AllReduceTable table;            // the time stands in for the median: nccl-tests prints an average over its iterations
  std::vector<std::string> notes;  // what was left out, a sentence each
};

// A text that starts with { is taken for JSON (format version 1 to 3), any other for the printed table, whose header says where its columns
// are. Comments (#), the log lines of NCCL itself and sizes of 0 bytes are left out, the latter two with a note.
//
// Throws InputError, with file and (in a table) line, for any other line, a time that is not positive or is CPU time, wrong elements,
// another collective than all_reduce_perf, and a world size that contradicts the ratio of bus to algorithm bandwidth, 2 (n - 1) / n.
NcclTestsTable parse_nccl_tests(std::string_view text, const std::string& file, const NcclTestsOptions& options);
NcclTestsTable read_nccl_tests(const std::filesystem::path& path, const NcclTestsOptions& options);

}  // namespace firkin
