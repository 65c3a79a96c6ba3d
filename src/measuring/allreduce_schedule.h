// Which collectives to time next, how many, and when it is enough: the one schedule behind `firkin bench allreduce`, automatic buckets and
// firkin.measure_all_reduce().
//
//   AllReduceSchedule schedule({{.bytes = 4}, {.bytes = 64 * kMiB}}, {.seconds = 10});
//   while (const auto visit = schedule.next()) schedule.tell(what_it_took(*visit));
//   allreduce_table(schedule.series(), world_size);
//
// It runs nothing and has no clock: it knows the time from what it is told. Ranks that are told the same ask for the same, so each of them
// may have a schedule of its own. Deterministic; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/plan/allreduce_table.h"

namespace firkin {

// The last two take an all-reduce's place under the strategy sharded, over all ranks' slices of a bucket.
enum class Collective { kAllReduce, kReduceScatter, kAllGather };
inline constexpr std::array kCollectives = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather};

struct TimedSize {
  int64_t bytes = 0;
  Collective collective = Collective::kAllReduce;
};

struct AllReduceScheduleOptions {
  double seconds = 10;  // budget for all of it; exceeded only where two rounds of single calls take longer
  uint64_t seed = 0;    // for the order of sizes, which is shuffled in every round so that drift of the machine meets all alike
  int64_t queue_bytes = 256 * kMiB;    // for all buffers of a queue together
  bool checks = true;                  // whether results are to be compared with known sums
  int most_calls = 100;                // per sample
  int most_samples = 1000;             // per visit
  std::optional<double> delay_s = {};  // between steps of a training: sizes whose calls take longer are left out, and `seconds` is never
                                       // exceeded; sizes must ascend
};

// One turn of one size, in this order, after a barrier.
struct AllReduceVisit {
  size_t size = 0;        // index
  bool checks = false;    // untimed: a queue over known values, and how many elements of its results are wrong
  bool warms_up = false;  // untimed: one call, which brings buffers back into the caches
  int isolated = 0;       // samples of `calls` calls, one after another
  int calls = 1;
  int queued = 0;  // samples of `queue` calls that are under way together, with a barrier before each
  int queue = 1;
};

// What was measured of one size: the slowest rank's times.
struct AllReduceSeries {
  Collective collective = Collective::kAllReduce;
  int64_t bytes = 0;
  int calls_per_sample = 1;          // short calls are timed several in a row, since one is too short for the clock
  std::vector<double> isolated_s;    // seconds per call, in the order measured
  std::vector<double> block_s = {};  // median of each round's samples; rounds of the same number stand beside each other
  std::vector<double> gap_s;         // seconds of one more queued call (queued_gap_s); empty: not measured
  int64_t wrong = 0;                 // elements of checked results that were not the exact sum, over all ranks
};

class AllReduceSchedule {
 public:
  static constexpr int kMostRounds = 10;
  static constexpr int kFewestRounds = 2;  // a long call's first sample counts as well, so that every median is of three samples or more

  AllReduceSchedule(const std::vector<TimedSize>& sizes, const AllReduceScheduleOptions& options);

  // How many calls of this size are ever under way together: about as many as a training step has, as far as their buffers fit into
  // options.queue_bytes; at least 1.
  int queue(size_t size) const { return sizes_[size].queue; }

  // What to run now; nothing: it is enough. Asking changes nothing.
  std::optional<AllReduceVisit> next() const;

  // What the visit took, in seconds, the same on every rank: per call for each isolated sample, for each queue, then for all isolated
  // samples together, for all queues together, and from the beginning of the measurement until now. `wrong`: elements, over all ranks.
  // Throws std::invalid_argument for another number of times.
  void tell(std::span<const double> seconds, int64_t wrong = 0);

  // How long the next visit is expected to take; extrapolated from the two sizes before if its size is new.
  double expected_s() const;

  int rounds() const { return round_; }                // that have ended
  double elapsed_s() const { return elapsed_s_; }      // as told
  bool is_cut_short() const { return is_cut_short_; }  // between steps: the time was up before every size had its turn
  std::vector<AllReduceSeries> series() const;         // of the sizes that were not left out, in the order given

 private:
  enum class Stage { kProbing, kProbingAgain, kFirstVisit, kRounds, kLastChecks, kDone };
  struct Size {
    AllReduceSeries series;  // its gap_s holds seconds of whole queues
    int queue = 1;
    int visits = 0;  // whose samples are kept
    double once_s = 0;
    double isolated_cost_s = 0, queued_cost_s = 0;  // of a sample
    double visit_s = 0;                             // the last visit
  };
  size_t current() const { return stage_ == Stage::kRounds ? order_[position_] : position_; }
  bool is_long(const Size& size) const;
  bool wants_last_check(const Size& size) const { return options_.checks && !is_long(size); }
  double time_left() const { return options_.seconds - elapsed_s_ - last_checks_s_; }
  void plan_samples(Size& size) const;
  void keep(const AllReduceVisit& visit, std::span<const double> seconds, Size& size) const;
  void advance();
  void begin_size();
  void begin_round();
  void begin_last_check();

  AllReduceScheduleOptions options_;
  std::vector<Size> sizes_;
  std::vector<size_t> order_;  // of the round
  std::mt19937_64 random_;
  Stage stage_ = Stage::kProbing;
  size_t position_ = 0;  // in sizes_, or in order_
  int round_ = 0;
  double elapsed_s_ = 0;
  double last_checks_s_ = 0;  // what the checks at the end are expected to take
  bool is_cut_short_ = false;
};

// The rows of allreduce.csv, and of collectives.csv: for each size the all-reduce first, which the others are compared with.
AllReduceTable allreduce_table(const std::vector<AllReduceSeries>& series, int64_t world_size);
std::vector<CollectiveRow> collective_rows(const std::vector<AllReduceSeries>& series, int64_t world_size);

}  // namespace firkin
