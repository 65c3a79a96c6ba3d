// The answer of `firkin tune`, as sections of results.json.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "firkin/plan/calibration.h"
#include "firkin/plan/decision.h"
#include "results/allreduce.h"
#include "results/steps.h"

namespace firkin {

// A choice against another that was measured in the same blocks: its step over the other's.
struct Gain {
  double ratio = 1;
  Interval ratio_ci;
};

// What to set, and what it is worth (plan/decision.h). Caps in MiB.
struct DecisionSection {
  std::string outcome = {};  // name_of(Outcome)
  double cap_mib = 0;
  std::optional<double> lowest_cap_mib = {}, highest_cap_mib = {};  // make the same buckets
  std::optional<double> predicted_s = {}, measured_s = {};          // a step with it
  std::optional<double> predicted_to_default = {};                  // that over one with PyTorch's default
  std::optional<Gain> over_default = {};                            // the same, measured by blocks that did not choose
  std::optional<double> expected_regret = {};                       // what the choice may cost over the best of the caps that were raced
  std::vector<double> tied_mib = {};                                // caps that cannot be told from it, with it
  bool inferred = false;                                            // by what an older result says of best_predicted: not written again
  std::optional<double> level = {};                                 // none measured over none predicted from
};
DecisionSection decision_section(const Decision& decision, std::span<const CapPrediction> raced);

// The best cap with gradients in another type on the wire, against the chosen cap.
struct HookGain {
  std::string hook;
  double cap_mib = 0;  // of the gradients, as all caps
  double predicted_s = 0;
  double measured_s = 0;
  double ratio = 1;  // of measured steps
  std::optional<Interval> ratio_ci = {};
};

struct TuneAnswer {
  DecisionSection decision;  // of an older result: what it says of best_predicted
  CurveRow best_predicted;
  CurveRow best_measured;
  std::vector<double> indifference_set = {};  // caps in MiB
  double regret = 0;                          // step at best_predicted over step at best_measured, minus 1
  std::optional<Interval> regret_ci = {};
  std::optional<Gain> over_default = {};          // the chosen cap, over PyTorch's default
  std::optional<Gain> planned_over_default = {};  // of older results
  std::optional<Gain> ordered_over_default = {};
  std::optional<Gain> ordered_over_best_cap = {};  // the chosen cap
  std::vector<HookGain> hooks = {};
  std::vector<double> plan_mib = {};       // buckets of the best plan in launch order
  std::vector<double> plan_caps_mib = {};  // bucket_cap_mb_list that gives them; empty where none does
};

// A run that the model was calibrated on.
struct CalibrationRun {
  std::string name;
  int64_t buckets = 0;
  double measured_s = 0;
};

struct CalibrationSection {
  std::vector<CalibrationRun> runs = {};
  Calibration fit;
};

// Names that a prediction has as well.
inline constexpr const char* kRegretKey = "regret";
inline constexpr const char* kOverheadKey = "overhead_s";

void write_answer(const TuneAnswer& answer, nlohmann::json& document);
TuneAnswer read_answer(const JsonFields& document);

nlohmann::json calibration_json(const CalibrationSection& calibration);
CalibrationSection read_calibration(const JsonFields& fields);

nlohmann::json simulation_json(const SimulationOptions& options);
SimulationOptions read_simulation(const JsonFields& fields);

// Whether the measurement cannot tell a cap from the best one.
bool is_tied(const TuneAnswer& answer, double cap_mib);

// "predicted best", "measured best", "tied", or nothing.
std::string remark_on(const TuneAnswer& answer, double cap_mib);

}  // namespace firkin
