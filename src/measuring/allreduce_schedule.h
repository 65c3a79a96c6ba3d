// Decides which collectives to time next, how often, and when to stop. `firkin bench allreduce`, automatic buckets and
// firkin.measure_all_reduce() all use this schedule.
//
//   AllReduceSchedule schedule({{.bytes = 4}, {.bytes = 64 * kMiB}}, {.seconds = 10});
//   while (const auto visit = schedule.next()) schedule.tell(what_it_took(*visit));
//   allreduce_table(schedule.series(), world_size);
//
// It runs nothing and has no clock; the caller reports times. Every rank may have its own schedule: told the same
// times, they ask for the same visits. Deterministic; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/plan/measurements.h"

namespace firkin {

// The last two replace an all-reduce under the strategy sharded, over the slices of a bucket that the ranks own.
enum class Collective { kAllReduce, kReduceScatter, kAllGather };
inline constexpr std::array kCollectives = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather};

struct TimedSize {
  int64_t bytes = 0;
  Collective collective = Collective::kAllReduce;
};

struct AllReduceScheduleOptions {
  double seconds = 10;  // the budget; exceeded only if two rounds of single calls take longer
  // Shuffles the sizes in every round, so that drift of the machine affects all alike.
  uint64_t seed = 0;
  int64_t queue_bytes = 256 * kMiB;  // the limit for all buffers of a queue together
  bool checks = true;                // whether results are to be compared with known sums
  // Set when measuring between training steps: leaves out sizes whose calls take longer than this, takes one sample of
  // each kind per visit, and never exceeds `seconds`. Sizes must ascend.
  std::optional<double> delay_s = {};
};

// What to run for one size, in this order, after a barrier.
struct AllReduceVisit {
  size_t size = 0;        // index
  bool checks = false;    // untimed: run a queue over known values, and count the elements with a wrong result
  bool warms_up = false;  // untimed: one call, to bring buffers back into the caches
  int isolated = 0;       // how many samples of `calls` calls, one after another
  int calls = 1;
  int queued = 0;  // how many samples of `queue` calls in flight together, with a barrier before each
  int queue = 1;
};

// The times measured for one size, on the slowest rank.
struct AllReduceSeries {
  Collective collective = Collective::kAllReduce;
  int64_t bytes = 0;
  int calls_per_sample = 1;          // one short call is too short for the clock, so several are timed in a row
  std::vector<double> isolated_s;    // seconds per call, in the order of measurement
  std::vector<double> block_s = {};  // the median of each round's samples, so that sizes can be compared round by round
  std::vector<double> gap_s;         // seconds for one more queued call (queued_gap_s); empty if not measured
  int64_t wrong = 0;                 // how many elements of checked results were not the exact sum, over all ranks
};

class AllReduceSchedule {
 public:
  static constexpr int kMostRounds = 10;
  // A long call's first sample counts too, so that every median has at least three samples.
  static constexpr int kFewestRounds = 2;

  AllReduceSchedule(const std::vector<TimedSize>& sizes, const AllReduceScheduleOptions& options);

  // The most calls of this size in flight together: about as many as in a training step, if their buffers fit into
  // options.queue_bytes. At least 1.
  int queue(size_t size) const { return sizes_[size].queue; }

  // The visit to run now; nothing if the measurement is complete.
  const std::optional<AllReduceVisit>& next() const { return visit_; }

  // Reports the visit's times in seconds, the same on every rank, in this order: each isolated sample (per call), each
  // queue, all isolated samples in sum, all queues in sum, and the time since the measurement began. `wrong`: wrong
  // elements over all ranks. Throws std::invalid_argument if the number of times does not match the visit.
  void tell(std::span<const double> seconds, int64_t wrong = 0);

  // The expected time of the next visit; extrapolated from the two previous sizes if its size is new.
  double expected_s() const;

  int rounds() const { return round_; }                // how many are complete
  double elapsed_s() const { return elapsed_s_; }      // from the last tell()
  bool is_cut_short() const { return is_cut_short_; }  // with delay_s: time was up before every size had its turn
  std::vector<AllReduceSeries> series() const;         // for the sizes that were not left out, in the order given

 private:
  enum class Stage { kProbing, kProbingAgain, kFirstVisit, kRounds, kLastChecks, kDone };
  struct Size {
    AllReduceSeries series;  // here, gap_s has the seconds of whole queues
    int queue = 1;
    int visits = 0;  // those whose samples are kept
    double once_s = 0;
    double isolated_cost_s = 0, queued_cost_s = 0;  // seconds of one sample
    double visit_s = 0;                             // seconds of the last visit
  };
  size_t current() const { return stage_ == Stage::kRounds ? order_[position_] : position_; }
  bool is_long(const Size& size) const;
  bool wants_last_check(const Size& size) const { return options_.checks && !is_long(size); }
  double remaining_s() const { return options_.seconds - elapsed_s_ - last_checks_s_; }
  void plan_samples(Size& size) const;
  void keep(const AllReduceVisit& visit, std::span<const double> seconds, Size& size) const;
  std::optional<AllReduceVisit> plan_visit() const;
  void advance();
  void begin_size();
  void begin_round();
  void begin_last_check();

  AllReduceScheduleOptions options_;
  std::vector<Size> sizes_;
  std::vector<size_t> order_;  // the sizes in the order of this round
  std::mt19937_64 random_;
  Stage stage_ = Stage::kProbing;
  size_t position_ = 0;  // index into order_ in rounds, otherwise into sizes_
  int round_ = 0;
  double elapsed_s_ = 0;
  double last_checks_s_ = 0;  // the expected time of the checks at the end
  bool is_cut_short_ = false;
  std::optional<AllReduceVisit> visit_;  // the one that next() returns
};

// The rows of allreduce.csv, and of all collectives: each size has its all-reduce first, for comparison.
AllReduceTable allreduce_table(const std::vector<AllReduceSeries>& series, int64_t world_size);
std::vector<CollectiveRow> collective_rows(const std::vector<AllReduceSeries>& series, int64_t world_size);

}  // namespace firkin
