#include "firkin/plan/allreduce_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <set>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

const CsvColumns& table_columns() {
  static const CsvColumns kColumns = {.required = {"bytes", "world_size"},
                                      .optional = {"median_s", "time_s", "gap_s", "mean_s", "stdev_s", "min_s", "max_s", "samples"}};
  return kColumns;
}

// The column that holds a(x): a median where there is one, else the file's only other time column.
std::string time_column(const CsvTable& table) {
  for (const char* name : {"median_s", "time_s", "mean_s", "min_s", "max_s"}) {
    if (table.has(name)) return name;
  }
  table.fail_at_end("no time column; expected median_s (or one of time_s, mean_s, min_s, max_s)");
}

double positive(const CsvTable& table, size_t row, const std::string& column) {
  const double value = table.number(row, column);
  if (const char* expected = expected_of_measured(value)) table.fail(row, fmt::format("{} is {}; expected {}", column, value, expected));
  return value;
}

int64_t at_least_one(const CsvTable& table, size_t row, const std::string& column) {
  const int64_t value = table.integer(row, column);
  if (value < 1) table.fail(row, fmt::format("{} is {}; expected at least 1", column, value));
  return value;
}

AllReduceTable from_csv(const CsvTable& table) {
  const std::string time = time_column(table);
  if (table.rows() == 0) table.fail_at_end("no measurements; expected lines of bytes,world_size," + time);
  AllReduceTable rows;
  for (size_t i = 0; i < table.rows(); ++i) {
    const auto is_known = [&](const char* column) { return table.has(column) && !table.empty(i, column); };
    const auto if_known = [&](const char* column) { return is_known(column) ? std::optional(positive(table, i, column)) : std::nullopt; };
    AllReduceRow& row = rows.emplace_back();
    row.bytes = at_least_one(table, i, "bytes");
    row.world_size = at_least_one(table, i, "world_size");
    row.median_s = positive(table, i, time);
    row.gap_s = if_known("gap_s");
    row.mean_s = if_known("mean_s");
    row.min_s = if_known("min_s");
    row.max_s = if_known("max_s");
    if (is_known("stdev_s")) {
      row.stdev_s = table.number(i, "stdev_s");
      if (*row.stdev_s < 0) table.fail(i, fmt::format("stdev_s is {}; expected at least 0", *row.stdev_s));
    }
    if (is_known("samples")) row.samples = at_least_one(table, i, "samples");
  }
  return rows;
}

}  // namespace

AllReduceTable parse_allreduce_csv(std::string_view text, const std::string& file) {
  return from_csv(parse_csv(text, file, table_columns()));
}

AllReduceTable read_allreduce_csv(const std::filesystem::path& path) {
  return from_csv(read_csv(path, table_columns()));
}

std::string allreduce_csv(const AllReduceTable& table) {
  const auto field = [](const auto& value) { return value ? fmt::format("{}", *value) : std::string(); };
  std::string text = "bytes,world_size,median_s,gap_s,mean_s,stdev_s,min_s,max_s,samples\n";
  for (const AllReduceRow& row : table) {
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{}\n", row.bytes, row.world_size, row.median_s, field(row.gap_s),
                   field(row.mean_s), field(row.stdev_s), field(row.min_s), field(row.max_s), field(row.samples));
  }
  return text;
}

void write_allreduce_csv(const std::filesystem::path& path, const AllReduceTable& table) {
  write_file_atomically(path, allreduce_csv(table));
}

AllReduceRow row_of_samples(int64_t bytes, int64_t world_size, std::span<const double> isolated_s, std::span<const double> gap_s) {
  const Summary isolated = summarize(isolated_s);
  AllReduceRow row{.bytes = bytes,
                   .world_size = world_size,
                   .median_s = isolated.median,
                   .mean_s = isolated.mean,
                   .stdev_s = isolated.stdev,
                   .min_s = isolated.min,
                   .max_s = isolated.max,
                   .samples = isolated.count,
                   .p99_s = isolated.p99};
  if (!gap_s.empty()) row.gap_s = median(gap_s);
  return row;
}

double queued_gap_s(double total_s, double isolated_s, double calls) {
  constexpr double kLeastPart = 0.01;
  return std::max((total_s - isolated_s) / (calls - 1), kLeastPart * total_s / calls);
}

std::vector<int64_t> sizes_between(int64_t begin, int64_t end, int64_t factor) {
  check_allreduce_size(begin);
  if (end < begin)
    throw InputError(fmt::format("all-reduce sizes from {} to {} bytes: expected an end that is not below the begin", begin, end));
  if (factor < 2) throw InputError(fmt::format("all-reduce sizes by factors of {}: expected at least 2", factor));
  std::vector<int64_t> sizes{begin};
  while (sizes.back() <= end / factor) sizes.push_back(sizes.back() * factor);
  return sizes;
}

std::vector<int64_t> allreduce_sizes(int64_t largest_bytes) {
  constexpr int64_t kTooClose = 2;  // a slope between two sizes that differ by less is noise
  const int64_t largest = std::max(kFloatBytes, largest_bytes / kFloatBytes * kFloatBytes);
  std::vector<int64_t> sizes = sizes_between(kFloatBytes, largest, 4);
  if (sizes.size() > 1 && largest / sizes.back() < kTooClose) sizes.pop_back();
  if (sizes.back() != largest) sizes.push_back(largest);
  return sizes;
}

std::vector<std::string> problems_of_table(const AllReduceTable& table) {
  constexpr int64_t kLargestOfLatency = 256 * kKiB;
  constexpr double kMostBytesPerS = 5e12, kLeastBytesPerS = 1e5;
  std::vector<std::string> problems;
  for (const int64_t world : world_sizes(table)) {
    AllReduceTable rows = table;
    std::erase_if(rows, [&](const AllReduceRow& row) { return row.world_size != world; });
    const auto [smallest, largest] = std::ranges::minmax(rows | std::views::transform(&AllReduceRow::bytes));
    if (smallest == largest) {
      problems.push_back(fmt::format("the all-reduce table has one size for {} ranks, {}: times of other sizes are guesses", world,
                                     format_bytes(smallest)));
    } else if (smallest > kLargestOfLatency) {
      problems.push_back(
          fmt::format("the smallest all-reduce of {} ranks is {}: the table does not show the latency every bucket pays; "
                      "measure {} or less too",
                      world, format_bytes(smallest), format_bytes(kLargestOfLatency)));
    }
    const auto is_odd = [&](const AllReduceRow& row) {
      const double bytes_per_s = static_cast<double>(row.bytes) / row.median_s;
      return bytes_per_s > kMostBytesPerS || (row.bytes >= kMiB && bytes_per_s < kLeastBytesPerS);
    };
    if (const auto odd = std::ranges::find_if(rows, is_odd); odd != rows.end()) {
      problems.push_back(fmt::format("an all-reduce of {} among {} ranks takes {} seconds: is the column in another unit?",
                                     format_bytes(odd->bytes), world, odd->median_s));
    }
  }
  return problems;
}

void check_allreduce_size(int64_t bytes) {
  if (bytes >= kFloatBytes && bytes % kFloatBytes == 0) return;
  throw InputError(fmt::format("all-reduce size {}: expected a positive multiple of {} bytes", bytes, kFloatBytes));
}

std::vector<int64_t> world_sizes(const AllReduceTable& table) {
  std::set<int64_t> sizes;
  for (const AllReduceRow& row : table) sizes.insert(row.world_size);
  return {sizes.begin(), sizes.end()};
}

CommCosts comm_costs(const AllReduceTable& table, int64_t world_size) {
  std::vector<CostPoint> isolated;
  std::vector<CostPoint> gap;
  for (const AllReduceRow& row : table) {
    if (row.world_size != world_size) continue;
    isolated.push_back({row.bytes, row.median_s});
    if (row.gap_s) gap.push_back({row.bytes, *row.gap_s});
  }
  if (isolated.empty()) {
    throw InputError(
        fmt::format("no all-reduce was measured at world size {}; expected one of {}", world_size, fmt::join(world_sizes(table), ", ")));
  }
  CostCurve latency(std::move(isolated));
  constexpr double kLeastPart = 0.5;
  const auto s_per_byte = [](const CostPoint& alone) { return alone.seconds / static_cast<double>(alone.bytes); };
  const double least_s_per_byte = std::ranges::min(latency.points() | std::views::transform(s_per_byte));
  for (CostPoint& point : gap) {
    double slowest_s = latency(static_cast<double>(point.bytes));
    for (const CostPoint& alone : latency.points()) {
      if (alone.bytes <= point.bytes) slowest_s = std::max(slowest_s, alone.seconds);
    }
    point.seconds = std::clamp(point.seconds, kLeastPart * least_s_per_byte * static_cast<double>(point.bytes), slowest_s);
  }
  CostCurve back_to_back = gap.empty() ? latency : CostCurve(std::move(gap));
  return {std::move(latency), std::move(back_to_back)};
}

}  // namespace firkin
