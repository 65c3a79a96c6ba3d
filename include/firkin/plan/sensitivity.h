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

// From an eighth to eight times, in steps of two, each influence alone. Contention only if there is some. Here and below, caps are those of
// distinct_plans(): of very many tensors some are skipped, and UniformCap::exhaustive of the same profile and rule says so.
std::vector<SensitivityPoint> sensitivity_table(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                                const SearchOptions& search = {});

// Latency times bandwidth, each from an eighth to eight times. Cell (i, j), at i * factors.size() + j, has latency times factors[i] and
// bandwidth times factors[j]; `influence` and `factor` of its point are the latency's.
struct SensitivityMap {
  std::vector<double> factors;
  std::vector<SensitivityPoint> cells;
};
SensitivityMap sensitivity_map(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                               const SearchOptions& search = {});

// What a change of one influence does to the best cap, at the operating point, from half to twice.
//
// T(b) of a real model is flat and has several low places, so its lowest point alone says little. Two answers are given: the caps that stay
// within 1 % of the best all the way, if there are any; and the slope d ln b* / d ln factor, by least squares, of the geometric mean of the
// caps around the best that expose at most a tenth more than it.
struct Elasticity {
  Influence influence = Influence::kLatency;
  double value = 0;              // the slope
  int64_t common_low_bytes = 0;  // 0: no cap stays within 1 %
  int64_t common_high_bytes = 0;
  std::string words;  // "from half to twice the latency: caps of 44 MiB to 75 MiB stay within 1 % of the best"
};
std::vector<Elasticity> elasticities(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                     const SearchOptions& search = {});

}  // namespace firkin
