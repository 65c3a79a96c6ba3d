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
#include "firkin/plan/decision.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/paired.h"
#include "results/profile.h"
#include "results/results.h"

namespace firkin::python {

struct TunerOptions {
  bool lists = true;               // whether DistributedDataParallel takes a list of caps, with which any plan can be calibrated on
  int64_t smallest_cap_bytes = 1;  // of what may be measured and recommended
  std::vector<int64_t> caps = {};  // to be measured besides the best predicted
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

  // After calibrate(): PyTorch's default, then the caps to race, ascending.
  const std::vector<DdpSetting>& settings() const { return settings_; }

  // As calibrate(), of settings(). A part of the blocks chooses, the others say what the choice gains: every third chooses, but six at
  // least are kept for the gain; of six or fewer none chooses, and the prediction does.
  void decide(const std::vector<std::vector<double>>& step_s);

  // After decide(): the default where that is to be kept, else the chosen cap.
  const DdpSetting& choice() const { return settings_.at(keeps_default(decision_.outcome) ? 0 : best_cap_); }
  const DdpSetting& best_cap() const { return settings_.at(best_cap_); }
  const Decision& decision() const { return decision_; }
  double predicted_s(size_t i) const { return predicted_s_.at(i); }  // a step of settings()[i]
  double measured_s(size_t i) const { return fit_.at(i + 1).median; }
  PairedRatio gain_over_default() const;  // the choice's step over the default's

  // The sections of results.json. After decide().
  void add_to(Results& results) const;

 private:
  StepModel model() const;
  CurveRow curve_row(size_t i) const;
  StrategyRow strategy_row(const std::string& name, size_t series) const;
  TuneAnswer answer() const;

  ProfileSection profile_;
  AllReduceTable table_;
  int64_t world_size_ = 0;
  CommCosts alone_, costs_;  // as measured, and calibrated
  TunerOptions options_;
  CalibrationSection calibration_;
  double none_step_s_ = 0;  // while calibrating
  std::vector<CapPrediction> raced_, dense_;
  std::vector<DdpSetting> calibration_settings_, settings_;
  size_t best_cap_ = 0;  // index into settings_
  Decision decision_;
  std::vector<double> predicted_s_;          // of settings_
  std::vector<std::vector<double>> step_s_;  // none, then settings_
  BlockFit fit_;                             // of these
};

}  // namespace firkin::python
