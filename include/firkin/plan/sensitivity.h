// How the best bucket cap and the backward time move when the model, the network or the computation change.
//
//   for (const SensitivityPoint& p : sensitivity_table(profile, costs, {.rule = CapRule::kAtMost}))
//     fmt::print("{} x {}: best cap {}\n", name_of(p.influence), p.factor, format_bytes(p.cap_bytes));
#pragma once

#include <array>
#include <string>
#include <vector>

#include "firkin/plan/uniform_cap.h"

namespace firkin {

enum class Influence {
  kTotalBytes,  // bytes of every gradient; computation takes as long as before
  kLatency,     // the part of a(x) and g(x) that is there at the smallest size: the least time in the table
  kBandwidth,   // what comes on top of that is divided by the factor
  kBackward,    // every ready time and the end of backward
  kContention,  // what the two slowdowns have above 1
};

inline constexpr std::array kInfluences = {Influence::kTotalBytes, Influence::kLatency, Influence::kBandwidth, Influence::kBackward,
                                           Influence::kContention};
std::string name_of(Influence influence);  // "total bytes", "latency", "bandwidth", "backward time", "contention"

// The inputs of a simulation with one of them multiplied by `factor` (more than 0).
struct ScaledInputs {
  TensorProfile profile;
  CommCosts costs;
  SimulationOptions options;
};
ScaledInputs scale_inputs(const ScaledInputs& inputs, Influence influence, double factor);

struct SensitivityPoint {
  Influence influence = Influence::kLatency;
  double factor = 1;
  int64_t cap_bytes = 0;  // of the best uniform cap
  int64_t buckets = 0;    // that it makes
  double backward_s = 0;  // with communication
  double exposed_s = 0;
  double kept_backward_s = 0;  // with the cap that is best at factor 1
  // Caps around the best one whose time is within 1 % of it; the higher end is at most the total bytes.
  int64_t near_low_bytes = 0;
  int64_t near_high_bytes = 0;
};

// From an eighth to eight times, in steps of two, each influence alone. Contention only if there is some. Caps are those of
// distinct_plans(): of very many tensors some are skipped, and UniformCap::exhaustive of the same profile and rule says so.
std::vector<SensitivityPoint> sensitivity_table(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                                const SearchOptions& search = {});

}  // namespace firkin
