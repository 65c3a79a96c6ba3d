// The files that predictions are made from: tensors.csv and allreduce.csv.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <ranges>
#include <set>
#include <unordered_set>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/measurements.h"

namespace firkin {
namespace {

constexpr int64_t kLargestTotal = int64_t{1} << 53;  // bytes; beyond it a double no longer counts single bytes

constexpr double kLongest = 1e9;  // seconds: 31 years

// fail(message) throws an error that says where the value is.
void check_time(const char* what, double seconds, const auto& fail) {
  if (!std::isfinite(seconds) || seconds < 0) fail(fmt::format("{} is {}; expected seconds, at least 0", what, seconds));
  if (seconds > kLongest) fail(fmt::format("{} is {}; expected seconds, at most {}", what, seconds, kLongest));
}

// Checks tensor i. Those before it have passed, and hold `total_before` bytes.
void check_tensor(const TensorProfile& profile, size_t i, int64_t total_before, const auto& fail) {
  if (profile.bytes[i] < 0) fail(fmt::format("bytes is {}; expected at least 0", profile.bytes[i]));
  if (profile.bytes[i] > kLargestTotal - total_before) fail(fmt::format("the total exceeds {} bytes", kLargestTotal));
  const double ready = profile.ready_s[i];
  check_time(kTensorReady, ready, fail);
  if (i > 0 && ready < profile.ready_s[i - 1]) {
    fail(fmt::format("ready_s is {} after {}; expected gradient-ready order", ready, profile.ready_s[i - 1]));
  }
  if (!profile.needed_s.empty()) check_time(kTensorNeeded, profile.needed_s[i], fail);
  if (!profile.update_s.empty()) check_time(kTensorUpdate, profile.update_s[i], fail);
}

TensorProfile from_table(const CsvTable& table) {
  if (table.rows() == 0) table.fail_in_header("no tensors; expected lines of name,bytes,ready_s");
  TensorProfile profile;
  const bool needed = table.has(kTensorNeeded), update = table.has(kTensorUpdate);
  std::unordered_set<std::string> names;
  int64_t total = 0;
  for (size_t row = 0; row < table.rows(); ++row) {
    profile.names.push_back(table.text(row, kTensorName));
    profile.bytes.push_back(table.integer(row, kTensorBytes));
    profile.ready_s.push_back(table.number(row, kTensorReady));
    if (needed) profile.needed_s.push_back(table.empty(row, kTensorNeeded) ? 0 : table.number(row, kTensorNeeded));
    if (update) profile.update_s.push_back(table.number(row, kTensorUpdate));
    if (profile.names.back().empty()) table.fail(row, "the name is empty; expected the tensor's name");
    if (!names.insert(profile.names.back()).second) table.fail(row, fmt::format("tensor '{}' appears twice", profile.names.back()));
    check_tensor(profile, row, total, [&](const std::string& wrong) { table.fail(row, wrong); });
    total += profile.bytes.back();
  }
  profile.backward_s = profile.ready_s.back();
  if (needed) profile.forward_s = std::ranges::max(profile.needed_s);
  return profile;
}

CsvColumns profile_columns() {
  return {.required = {kTensorName, kTensorBytes, kTensorReady}, .optional = {kTensorNeeded, kTensorUpdate}};
}

CsvColumns table_columns() {
  return {.required = {"bytes", "world_size"},
          .optional = {"median_s", "time_s", "gap_s", "mean_s", "stdev_s", "min_s", "max_s", "samples", "stderr_s", "gap_stderr_s"}};
}

// The column that holds a(x): a median where there is one, else the file's only other time column.
std::string time_column(const CsvTable& table) {
  for (const char* name : {"median_s", "time_s", "mean_s", "min_s", "max_s"}) {
    if (table.has(name)) return name;
  }
  table.fail_in_header("no time column; expected median_s (or one of time_s, mean_s, min_s, max_s)");
}

double positive(const CsvTable& table, size_t row, const std::string& column) {
  const double value = table.number(row, column);
  if (const char* expected = expected_of_measured(value)) table.fail(row, fmt::format("{} is {}; expected {}", column, value, expected));
  return value;
}

double not_negative(const CsvTable& table, size_t row, const std::string& column) {
  const double value = table.number(row, column);
  if (value < 0) table.fail(row, fmt::format("{} is {}; expected at least 0", column, value));
  return value;
}

int64_t at_least_one(const CsvTable& table, size_t row, const std::string& column) {
  const int64_t value = table.integer(row, column);
  if (value < 1) table.fail(row, fmt::format("{} is {}; expected at least 1", column, value));
  return value;
}

AllReduceTable from_csv(const CsvTable& table) {
  const std::string time = time_column(table);
  if (table.rows() == 0) table.fail_in_header("no measurements; expected lines of bytes,world_size," + time);
  AllReduceTable rows;
  for (size_t i = 0; i < table.rows(); ++i) {
    const auto read_if_known = [&](auto& member, const char* column, auto read) {
      if (table.has(column) && !table.empty(i, column)) member = read(table, i, column);
    };
    AllReduceRow& row = rows.emplace_back();
    row.bytes = at_least_one(table, i, "bytes");
    row.world_size = at_least_one(table, i, "world_size");
    row.median_s = positive(table, i, time);
    read_if_known(row.gap_s, "gap_s", positive);
    read_if_known(row.mean_s, "mean_s", positive);
    read_if_known(row.min_s, "min_s", positive);
    read_if_known(row.max_s, "max_s", positive);
    read_if_known(row.stdev_s, "stdev_s", not_negative);
    read_if_known(row.stderr_s, "stderr_s", not_negative);
    read_if_known(row.gap_stderr_s, "gap_stderr_s", not_negative);
    read_if_known(row.samples, "samples", at_least_one);
  }
  return rows;
}

}  // namespace

int64_t TensorProfile::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

double TensorProfile::updates_s() const {
  return std::accumulate(update_s.begin(), update_s.end(), 0.0);
}

TensorProfile with_forward(TensorProfile profile, double forward_s) {
  profile.forward_s = forward_s;
  profile.needed_s.clear();
  for (const double ready_s : profile.ready_s) {
    const double share = profile.backward_s > 0 ? ready_s / profile.backward_s : 1;
    profile.needed_s.push_back(forward_s * std::max(0.0, 1 - share));
  }
  return profile;
}

TensorProfile slowed(TensorProfile profile, double factor) {
  for (std::vector<double>* times : {&profile.ready_s, &profile.needed_s, &profile.update_s}) {
    for (double& seconds : *times) seconds *= factor;
  }
  profile.backward_s *= factor;
  profile.forward_s *= factor;
  return profile;
}

void check_profile(const TensorProfile& profile) {
  const size_t count = profile.names.size();
  if (profile.bytes.size() != count || profile.ready_s.size() != count) {
    throw InputError(fmt::format("the profile has {} names, {} sizes and {} ready times; expected the same number of each", count,
                                 profile.bytes.size(), profile.ready_s.size()));
  }
  const auto check_count = [count](const char* what, size_t times) {
    if (times != 0 && times != count)
      throw InputError(fmt::format("the profile has {} names and {} {}; expected as many", count, times, what));
  };
  check_count(kTensorNeeded, profile.needed_s.size());
  check_count(kTensorUpdate, profile.update_s.size());
  std::unordered_set<std::string> names;
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!names.insert(profile.names[i]).second) throw InputError(fmt::format("tensor '{}' appears twice", profile.names[i]));
    check_tensor(profile, i, total,
                 [&](const std::string& wrong) { throw InputError(fmt::format("tensor '{}': {}", profile.names[i], wrong)); });
    total += profile.bytes[i];
  }
  const double last = count == 0 ? 0 : profile.ready_s.back();
  if (!std::isfinite(profile.backward_s) || profile.backward_s < last) {
    throw InputError(fmt::format("backward_s is {}; expected at least the last ready time, {}", profile.backward_s, last));
  }
  const double last_use = profile.needed_s.empty() ? 0 : std::ranges::max(profile.needed_s);
  if (!std::isfinite(profile.forward_s) || profile.forward_s < last_use || profile.forward_s > kLongest) {
    throw InputError(fmt::format("forward_s is {}; expected at least the largest needed_s, {}", profile.forward_s, last_use));
  }
}

TensorProfile parse_tensors_csv(std::string_view text, const std::string& file) {
  return from_table(parse_csv(text, file, profile_columns()));
}

TensorProfile read_tensors_csv(const std::filesystem::path& path) {
  return from_table(read_csv(path, profile_columns()));
}

std::string tensors_csv(const TensorProfile& profile) {
  check_profile(profile);
  const bool needed = !profile.needed_s.empty(), update = !profile.update_s.empty();
  std::string text = "name,bytes,ready_s";
  if (needed) text += ",needed_s";
  if (update) text += ",update_s";
  text += '\n';
  for (size_t i = 0; i < profile.names.size(); ++i) {
    const auto out = std::back_inserter(text);
    fmt::format_to(out, "{},{},{}", csv_field(profile.names[i]), profile.bytes[i], profile.ready_s[i]);
    if (needed) fmt::format_to(out, ",{}", profile.needed_s[i]);
    if (update) fmt::format_to(out, ",{}", profile.update_s[i]);
    text += '\n';
  }
  return text;
}

void write_tensors_csv(const std::filesystem::path& path, const TensorProfile& profile) {
  write_file_atomically(path, tensors_csv(profile));
}

AllReduceTable parse_allreduce_csv(std::string_view text, const std::string& file) {
  return from_csv(parse_csv(text, file, table_columns()));
}

AllReduceTable read_allreduce_csv(const std::filesystem::path& path) {
  return from_csv(read_csv(path, table_columns()));
}

std::string allreduce_csv(const AllReduceTable& table) {
  const auto field = [](const auto& value) { return value ? fmt::format("{}", *value) : std::string(); };
  std::string text = "bytes,world_size,median_s,gap_s,mean_s,stdev_s,min_s,max_s,samples,stderr_s,gap_stderr_s\n";
  for (const AllReduceRow& row : table) {
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{},{},{}\n", row.bytes, row.world_size, row.median_s,
                   field(row.gap_s), field(row.mean_s), field(row.stdev_s), field(row.min_s), field(row.max_s), field(row.samples),
                   field(row.stderr_s), field(row.gap_stderr_s));
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
                   .stderr_s = series_error(isolated_s),
                   .gap_stderr_s = series_error(gap_s),
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

std::vector<MeasurementDoubt> doubts_about(const AllReduceTable& table) {
  constexpr double kMostBytesPerS = 5e12, kLeastBytesPerS = 1e5;
  std::vector<MeasurementDoubt> doubts;
  for (const int64_t world : world_sizes(table)) {
    AllReduceTable rows = table;
    std::erase_if(rows, [&](const AllReduceRow& row) { return row.world_size != world; });
    const auto [smallest, largest] = std::ranges::minmax(rows | std::views::transform(&AllReduceRow::bytes));
    if (smallest == largest) {
      doubts.emplace_back(SingleSize{.world_size = world, .bytes = smallest});
    } else if (smallest > kLargestOfLatency) {
      doubts.emplace_back(NoSmallSize{.world_size = world, .smallest_bytes = smallest});
    }
    const auto is_implausible = [&](const AllReduceRow& row) {
      const double bytes_per_s = static_cast<double>(row.bytes) / row.median_s;
      return bytes_per_s > kMostBytesPerS || (row.bytes >= kMiB && bytes_per_s < kLeastBytesPerS);
    };
    if (const auto row = std::ranges::find_if(rows, is_implausible); row != rows.end()) {
      doubts.emplace_back(ImplausibleTime{.world_size = world, .bytes = row->bytes, .seconds = row->median_s});
    }
  }
  return doubts;
}

std::vector<MeasurementDoubt> doubts_about(const TensorProfile& profile) {
  constexpr double kLongestBackward = 60;  // seconds
  if (profile.backward_s <= kLongestBackward) return {};
  return {ImplausibleBackward{.seconds = profile.backward_s}};
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

int64_t only_world(const AllReduceTable& table, const std::string& table_name, const std::string& argument) {
  const std::vector<int64_t> worlds = world_sizes(table);
  if (worlds.size() == 1) return worlds[0];
  throw InputError(fmt::format("{}: several world sizes; expected {} with one of {}, or with another to extrapolate to", table_name,
                               argument, fmt::join(worlds, ", ")));
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

ShardedCosts sharded_costs(const std::vector<CollectiveRow>& rows) {
  const auto costs_of = [&](std::string_view collective) {
    AllReduceTable table;
    for (const CollectiveRow& row : rows) {
      if (row.collective == collective) table.push_back({.bytes = row.bytes, .world_size = 1, .median_s = row.seconds, .gap_s = row.gap_s});
    }
    if (table.empty()) throw InputError(fmt::format("no {} was measured; expected both reduce_scatter and all_gather", collective));
    return comm_costs(table, 1);
  };
  return {costs_of("reduce_scatter"), costs_of("all_gather")};
}

}  // namespace firkin
