// allreduce.csv: measured all-reduce times, the right input of the performance model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "firkin/plan/cost_curve.h"

namespace firkin {

// One size at one world size. All times are seconds per call.
struct AllReduceRow {
  int64_t bytes = 0;
  int64_t world_size = 0;
  double median_s = 0;
  std::optional<double> gap_s;  // queued back to back; absent: not measured
  std::optional<double> mean_s, stdev_s, min_s, max_s;
  std::optional<int64_t> samples;
};

using AllReduceTable = std::vector<AllReduceRow>;

// Columns: bytes,world_size,median_s,gap_s,mean_s,stdev_s,min_s,max_s,samples. A file with only bytes, world_size and one time column is
// accepted. Throws InputError with file and line for every malformed input; nothing is dropped.
AllReduceTable read_allreduce_csv(const std::filesystem::path& path);
void write_allreduce_csv(const std::filesystem::path& path, const AllReduceTable& table);

// The curves at one world size. Throws InputError when the table has no row for it.
CommCosts comm_costs(const AllReduceTable& table, int64_t world_size);

}  // namespace firkin
