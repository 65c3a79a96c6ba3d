// Decides which setting of training steps to run next, and when to stop: in blocks, in which every setting runs once.
// The C++ benchmarks, firkin.tune() and the trial of automatic buckets all use this schedule.
//
//   const StepCounts steps{.warmup_steps = 2, .timed_steps = 2};
//   StepSchedule schedule({steps, steps}, {.most = 12, .seconds = 60});
//   while (const auto visit = schedule.next()) { ... run it ...; schedule.tell(seconds_since_the_beginning); }
//
// It runs nothing and has no clock. Ranks that report the same times get the same visits. Deterministic; not
// thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "firkin/plan/measurements.h"

namespace firkin {

// The steps of one visit to a setting.
struct StepCounts {
  int warmup_steps = 1;  // untimed steps after the switch to the setting
  int timed_steps = 2;
};

struct StepBlocks {
  int fewest = 1;
  int most = 12;
  // After the fewest blocks, another one begins only if it is expected to end within this time.
  double seconds = std::numeric_limits<double>::infinity();
  // Shuffles the settings in every block. Without a seed they run in order, reversed in every other block, so that
  // drift of the machine affects two settings alike.
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
  // settings: at least one. Throws std::invalid_argument if `blocks` asks for fewer than one block.
  StepSchedule(std::vector<StepCounts> settings, const StepBlocks& blocks);

  // The visit to run now; nothing if the measurement is complete. Does not change the schedule.
  std::optional<StepVisit> next() const;

  // Ends the visit. elapsed_s: seconds since the first visit began. is_enough: whether the blocks so far suffice. Both
  // must be the same on every rank, and matter only at the end of a block.
  void tell(double elapsed_s = 0, bool is_enough = false);

 private:
  std::vector<StepCounts> settings_;
  StepBlocks blocks_;
  std::vector<size_t> order_;  // the settings in the order of this block
  std::mt19937_64 random_;
  size_t position_ = 0;
  int block_ = 0;
  bool is_over_ = false;
};

// The steps of one setting, per block, in seconds on the slowest rank; the median of a block's several steps.
struct SettingSteps {
  std::string name;
  int64_t buckets = 0;
  std::vector<double> step_s = {};  // per block
  // Per block, from the end of backward to the last gradient; empty if not measured.
  std::vector<double> comm_s = {};
  // Per block, to send all buckets with no backward around them; empty if not measured.
  std::vector<double> communication_s = {};
  std::vector<std::vector<double>> raw_step_s = {};  // [step][rank]; empty if not kept
};

// The step_s of each setting: [setting][block].
std::vector<std::vector<double>> series_of(std::span<const SettingSteps> settings);

// ---- A profile from the times of watched steps: the time at which each gradient became ready.

struct MeasuredProfile {
  TensorProfile tensors;
  std::vector<int64_t> ready_order = {};         // the same order as indices of parameters; empty if that is not needed
  std::optional<double> bare_backward_s = {};    // backward without hooks
  std::optional<double> hook_perturbation = {};  // what the hooks cost, as a fraction of backward
};

// Sets hook_perturbation and bare_backward_s, from pairs of backward passes with hooks and without, in seconds.
void add_bare_backward(const std::vector<double>& hooked_s, const std::vector<double>& bare_s, MeasuredProfile& profile);

// The profile of watched steps. names, bytes: per parameter. order: the gradient-ready order, as indices of parameters.
// hooked_s: for each step the seconds to the end of backward, then to each parameter's readiness. bare_s: the seconds
// of as many backward passes without hooks.
MeasuredProfile profile_of_steps(const std::vector<std::string>& names, const std::vector<int64_t>& bytes,
                                 const std::vector<int64_t>& order, const std::vector<std::vector<double>>& hooked_s,
                                 const std::vector<double>& bare_s);

// Indices by ascending time; equal times in their own order.
std::vector<int64_t> order_of_times(const std::vector<double>& times);

// A profile for the performance model. Gradients are launched in `order` (indices of parameters), so a tensor counts as
// ready once all before it are. names, bytes, ready_s: per parameter, in seconds from the start of backward.
TensorProfile profile_in_order(const std::vector<std::string>& names, const std::vector<int64_t>& bytes, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s);

}  // namespace firkin
