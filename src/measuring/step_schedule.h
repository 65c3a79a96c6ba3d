// Which setting of training steps to run next, and when it is enough: blocks in which every setting runs once. The one schedule behind the
// C++ benchmarks, firkin.tune() and the trial of automatic buckets.
//
//   StepSchedule schedule({{.warmup_steps = 2, .timed_steps = 2}, {.warmup_steps = 2, .timed_steps = 2}}, {.most = 12, .seconds = 60});
//   while (const auto visit = schedule.next()) { ... run it ...; schedule.tell(seconds_since_the_beginning); }
//
// It runs nothing and has no clock. Ranks that tell the same are asked for the same. Deterministic; not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace firkin {

// Steps of one visit of a setting.
struct StepCounts {
  int warmup_steps = 1;  // after the switch to the setting, untimed
  int timed_steps = 2;
};

struct StepBlocks {
  int fewest = 1;
  int most = 12;
  double seconds = std::numeric_limits<double>::infinity();  // beyond the fewest, no block begins that would end after them
  // For the order of settings, which is shuffled anew in every block. None: as they are, and reversed in every other block, so that drift
  // of the machine meets two settings alike.
  std::optional<uint64_t> seed = {};
};

struct StepVisit {
  size_t setting = 0;  // index
  StepCounts steps;
  int block = 0;
  bool ends_block = false;
};

class StepSchedule {
 public:
  // At least one setting. Throws std::invalid_argument for fewer than one block.
  StepSchedule(std::vector<StepCounts> settings, const StepBlocks& blocks);

  // What to run now; nothing: it is enough. Asking changes nothing.
  std::optional<StepVisit> next() const;

  // That visit has ended. elapsed_s: since the first one began, and is_enough: whether the blocks so far suffice, both the same on every
  // rank and looked at only where the visit ended a block.
  void tell(double elapsed_s = 0, bool is_enough = false);

 private:
  std::vector<StepCounts> settings_;
  StepBlocks blocks_;
  std::vector<size_t> order_;  // of this block
  std::mt19937_64 random_;
  size_t position_ = 0;
  int block_ = 0;
  bool is_over_ = false;
};

}  // namespace firkin
