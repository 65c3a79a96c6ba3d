// What predictions are made from, and the files that hold it: when each gradient becomes ready in the backward pass and
// when the next forward pass uses its parameter (tensors.csv), and the times of all-reduces by size and number of ranks
// (allreduce.csv).
//
//   const TensorProfile profile = read_tensors_csv("tensors.csv");
//   const CommCosts costs = comm_costs(read_allreduce_csv("allreduce.csv"), /*world_size=*/2);
//   simulate(profile, assign_buckets(profile.bytes, {.cap_bytes = 25 * kMiB}), costs).exposed_s;
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/stats/estimates.h"

namespace firkin {

// ---- The profile of a model.

// Tensors in gradient-ready order. The vectors have one entry per tensor; ready_s does not decrease. needed_s and
// update_s may be empty: not measured.
struct TensorProfile {
  std::vector<std::string> names;
  std::vector<int64_t> bytes;   // the gradient's size
  std::vector<double> ready_s;  // seconds from the start of backward
  double backward_s = 0;        // end of the backward pass without communication; at least the last ready_s

  // The rest is for communication that also overlaps the next forward pass.
  // First use of the parameter: seconds from the start of forward; 0: before forward begins.
  std::vector<double> needed_s = {};
  std::vector<double> update_s = {};  // the optimiser's step on the tensor
  double forward_s = 0;               // end of the forward pass without waiting; at least the largest needed_s

  bool knows_forward() const { return !needed_s.empty(); }
  int64_t total_bytes() const;  // over all gradients
  double updates_s() const;     // over all tensors
};

// The columns of tensors.csv, and the fields of a tensor in results.json.
inline constexpr const char* kTensorName = "name";
inline constexpr const char* kTensorBytes = "bytes";
inline constexpr const char* kTensorReady = "ready_s";
inline constexpr const char* kTensorNeeded = "needed_s";
inline constexpr const char* kTensorUpdate = "update_s";

// Adds a forward pass of `forward_s` seconds to a profile without one: parameters are needed in reverse gradient-ready
// order, at times that mirror backward's.
TensorProfile with_forward(TensorProfile profile, double forward_s);

// The profile with all of its computation taking `factor` times as long.
TensorProfile slowed(TensorProfile profile, double factor);

// Throws InputError unless the vectors agree in length, names are distinct, times are finite and not negative, ready_s
// does not decrease, and no time lies behind the end of its pass.
void check_profile(const TensorProfile& profile);

// tensors.csv: `name,bytes,ready_s` in gradient-ready order, and if known `needed_s` (an empty field: 0) and
// `update_s`. The file does not hold the ends of the passes: backward_s becomes the last ready time, and forward_s the
// largest needed_s. Throws InputError with file and line for every malformed input; nothing is dropped.
TensorProfile parse_tensors_csv(std::string_view text, const std::string& file);  // `file`: the name used in errors
TensorProfile read_tensors_csv(const std::filesystem::path& path);
std::string tensors_csv(const TensorProfile& profile);  // the content of such a file; throws as check_profile
// Throws RuntimeError as well, if the file cannot be written.
void write_tensors_csv(const std::filesystem::path& path, const TensorProfile& profile);

// ---- All-reduces and other collectives.

// One size at one world size. All times are seconds per call.
struct AllReduceRow {
  int64_t bytes = 0;
  int64_t world_size = 0;
  double median_s = 0;
  std::optional<double> gap_s = std::nullopt;  // per call when queued back to back; none if not measured
  std::optional<double> mean_s = std::nullopt, stdev_s = std::nullopt, min_s = std::nullopt, max_s = std::nullopt;
  std::optional<int64_t> samples = std::nullopt;
  std::optional<double> stderr_s = std::nullopt, gap_stderr_s = std::nullopt;  // standard errors of median_s and gap_s
  // Not in allreduce.csv:
  std::optional<double> p99_s = std::nullopt;
  std::optional<int64_t> calls_per_sample = std::nullopt;
  std::optional<int64_t> wrong = std::nullopt;  // elements that differ from the sum over the ranks
};

using AllReduceTable = std::vector<AllReduceRow>;

// Summarises the samples of one size, in the order measured, with the median gap if it was measured. Neighbouring
// samples resemble each other, so standard errors are those of a series (stats/estimates.h). Throws
// std::invalid_argument without isolated_s.
AllReduceRow row_of_samples(int64_t bytes, int64_t world_size, std::span<const double> isolated_s, std::span<const double> gap_s);

// Columns: bytes,world_size,median_s,gap_s,mean_s,stdev_s,min_s,max_s,samples,stderr_s,gap_stderr_s. A file with only
// bytes, world_size and one time column is accepted: median_s, or else the first present of time_s, mean_s, min_s,
// max_s. An empty field means not measured. Throws InputError with file and line for every malformed input; nothing is
// dropped.
AllReduceTable parse_allreduce_csv(std::string_view text, const std::string& file);  // `file`: the name used in errors
AllReduceTable read_allreduce_csv(const std::filesystem::path& path);
std::string allreduce_csv(const AllReduceTable& table);  // the content of such a file
// Throws RuntimeError if the file cannot be written.
void write_allreduce_csv(const std::filesystem::path& path, const AllReduceTable& table);

// g(x), the time of one more queued call, from `calls` (more than 1) queued together and one alone: (total_s -
// isolated_s) / (calls - 1), so without the first call's latency. At least total_s / calls / 100, so that noise never
// makes a call free.
double queued_gap_s(double total_s, double isolated_s, double calls);

// One collective of one size.
struct CollectiveRow {
  std::string collective;                         // all_reduce, reduce_scatter, all_gather
  int64_t bytes = 0;                              // the bucket's size: all ranks' slices together
  std::optional<int64_t> world_size = {};         // ranks
  double seconds = 0;                             // median of single calls
  std::optional<double> gap_s = {};               // per call when queued back to back; none if not measured
  std::optional<Interval> ci_s = {};              // 95 % interval of `seconds`
  std::optional<double> ratio_to_allreduce = {};  // paired
  std::optional<Interval> ratio_to_allreduce_ci = {};
  std::optional<int64_t> samples = {}, calls_per_sample = {}, wrong = {};
};

// Sizes to measure: begin, begin * factor, ... up to `end`, like nccl-tests' -b, -e and -f. Throws InputError unless
// begin is a positive multiple of 4 (float32 elements), not above end, and factor at least 2.
std::vector<int64_t> sizes_between(int64_t begin, int64_t end, int64_t factor);

// 4 B, 16 B, ... by factors of 4, then `largest_bytes`; no other size is above half of it.
std::vector<int64_t> allreduce_sizes(int64_t largest_bytes);

// Throws InputError unless `bytes` is a positive multiple of 4.
void check_allreduce_size(int64_t bytes);

// ---- Doubts about measurements that are legal, but cannot say what is asked of them. notes_of() of report/words.h words
// them.

// The table has a single size for this many ranks: times of all other sizes are guesses.
struct SingleSize {
  int64_t world_size = 0, bytes = 0;
};

// All sizes are too large to show the latency that every bucket pays.
struct NoSmallSize {
  int64_t world_size = 0, smallest_bytes = 0;
};
inline constexpr int64_t kLargestOfLatency = 256 * kKiB;  // a size up to this shows it

// An all-reduce faster or slower than any link: its time is probably not in seconds.
struct ImplausibleTime {
  int64_t world_size = 0, bytes = 0;
  double seconds = 0;
};

// A backward pass of more than a minute: its times are probably not in seconds.
struct ImplausibleBackward {
  double seconds = 0;
};

using MeasurementDoubt = std::variant<SingleSize, NoSmallSize, ImplausibleTime, ImplausibleBackward>;

// Both are empty for most measurements. Doubts about a table are ordered by its world sizes.
std::vector<MeasurementDoubt> doubts_about(const AllReduceTable& table);
std::vector<MeasurementDoubt> doubts_about(const TensorProfile& profile);

// The world sizes in the table, ascending.
std::vector<int64_t> world_sizes(const AllReduceTable& table);

// The number of ranks that the table was measured with. Throws InputError unless it is a single one; the error names the
// table, and the argument that would choose.
int64_t only_world(const AllReduceTable& table, const std::string& table_name, const std::string& argument);

// The curves at one world size. The gap curve comes from the rows with a gap, or is the isolated curve if there are
// none. A gap is at most the slowest single call of that size or less (threads of an otherwise idle queue compete for a
// core; a training step's do not), and at least half of its bytes' time at the best rate of any single call (on a busy
// machine a queue may seem as fast as one call). Throws InputError if the table has no row for this world size.
CommCosts comm_costs(const AllReduceTable& table, int64_t world_size);

// The curves of reduce-scatter and all-gather. Throws InputError unless each has a row.
ShardedCosts sharded_costs(const std::vector<CollectiveRow>& rows);

}  // namespace firkin
