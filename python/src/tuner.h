// The decisions of firkin.tune: what to run through DistributedDataParallel, and which of it to recommend. Nothing is measured here.
//
//   Tuner tuner(profile, table, world_size, {.lists = true});
//   tuner.calibrate(step_s);  // of "none" and tuner.calibration_settings(): [setting][block]
//   tuner.decide(step_s);     // of "none" and tuner.settings()
//   tuner.choice().cap_bytes;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/tune_choice.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/paired.h"
#include "results/profile.h"
#include "results/results.h"

namespace firkin::python {

struct TunerOptions {
  bool lists = true;               // whether DistributedDataParallel takes a list of caps, with which any plan can be run
  int64_t smallest_cap_bytes = 1;  // of what may be measured and recommended
  std::vector<int64_t> caps = {};  // to be measured besides the best one; empty: half and twice the best
};

// One way to call DistributedDataParallel: by a cap, by the list of caps that makes `plan`, or with neither.
struct DdpSetting {
  std::string name;
  std::optional<int64_t> cap_bytes = {};
  bool as_list = false;
  BucketPlan plan = {};  // over the profile's tensors: what the setting should give
};

class Tuner {
 public:
  // Throws InputError when the profile or the table does not pass its checks, or a cap is not positive.
  Tuner(ProfileSection profile, AllReduceTable table, int64_t world_size, TunerOptions options);

  // Three plans that no cap makes where lists are possible, else caps.
  const std::vector<DdpSetting>& calibration_settings() const { return calibration_settings_; }

  // Seconds a step, [setting][block]: without communication, then the settings above. Throws std::invalid_argument for another number of
  // series.
  void calibrate(const std::vector<std::vector<double>>& step_s);

  // After calibrate(): PyTorch's default, caps, ascending, and last the best plan, where a list can make it and no cap does.
  const std::vector<DdpSetting>& settings() const { return settings_; }

  // Without the best plan, because PyTorch did not make its buckets.
  void drop_plan();

  // As calibrate(), of settings().
  void decide(const std::vector<std::vector<double>>& step_s);

  // After decide(): what is predicted to be best (the plan only where it is to gain a hundredth over the best cap), unless the measurement
  // says that another is faster: then the fastest.
  const DdpSetting& choice() const { return settings_.at(choice_); }
  const DdpSetting& best_cap() const;                                // the same among caps
  const DdpSetting* plan() const;                                    // null: none was measured
  double predicted_s(size_t i) const { return predicted_s_.at(i); }  // a step of settings()[i]
  double measured_s(size_t i) const;                                 // the median
  PairedRatio gain_over_default() const;                             // the choice's step over the default's
  std::vector<size_t> tied() const { return tied_; }                 // settings that the measurement cannot tell from the fastest

  // The sections of results.json. After decide().
  void add_to(Results& results) const;

 private:
  StepModel model(double none_step_s) const;
  std::vector<DdpSetting> caps_to_measure(const StepModel& model, int64_t most_buckets) const;
  CurveRow curve_row(size_t i) const;
  StrategyRow strategy_row(const std::string& name, size_t series) const;
  TuneAnswer answer() const;

  ProfileSection profile_;
  AllReduceTable table_;
  int64_t world_size_ = 0;
  CommCosts costs_;
  TunerOptions options_;
  CalibrationSection calibration_;
  std::vector<MeasuredRun> calibration_runs_;
  std::vector<CapPrediction> dense_;
  std::vector<DdpSetting> calibration_settings_, settings_;
  size_t predicted_cap_ = 0, measured_cap_ = 0, best_cap_ = 0, choice_ = 0;  // indices into settings_
  std::vector<size_t> tied_, tied_caps_;
  PairedRatio predicted_to_measured_;        // of the caps
  std::vector<double> predicted_s_;          // of settings_
  std::vector<std::vector<double>> step_s_;  // none, then settings_
  BlockFit fit_;                             // of these
};

}  // namespace firkin::python
