#include "firkin/stats/unpaired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "firkin/stats/summary.h"
#include "sieve_bootstrap.h"

namespace firkin {

namespace {

std::vector<double> logarithms(std::span<const double> values) {
  std::vector<double> logs;
  logs.reserve(values.size());
  for (const double value : values) {
    if (!(value > 0 && std::isfinite(value))) throw std::invalid_argument("a ratio of a value that is not positive and finite");
    logs.push_back(std::log(value));
  }
  if (logs.empty()) throw std::invalid_argument("a ratio of no values");
  return logs;
}

void require_stated(const StatedMedian& stated) {
  if (!(stated.median > 0 && std::isfinite(stated.median))) {
    throw std::invalid_argument("a stated median that is not positive and finite");
  }
  if (!stated.interval.contains(stated.median)) throw std::invalid_argument("a stated median outside its interval");
}

}  // namespace

PairedRatio unpaired_ratio(std::span<const double> a, std::span<const double> reference, uint64_t seed, double confidence, int resamples) {
  if (!(confidence > 0 && confidence < 1)) throw std::invalid_argument("a confidence outside 0 to 1");
  if (resamples < 1) throw std::invalid_argument("a bootstrap without resamples");
  const std::vector<double> log_a = logarithms(a);
  const std::vector<double> log_reference = logarithms(reference);
  const double ratio = std::exp(median(log_a) - median(log_reference));
  if (std::min(a.size(), reference.size()) < kFewestSamples) return {ratio, {0, std::numeric_limits<double>::infinity()}};
  const Interval interval = sieve_bootstrap_difference(log_a, log_reference, seed, confidence, resamples);
  return {ratio, {std::exp(interval.low), std::exp(interval.high)}};
}

PairedRatio ratio_of_stated(const StatedMedian& a, const StatedMedian& reference) {
  require_stated(a);
  require_stated(reference);
  // An interval that reaches down to 0 is one without a lower end: log(median / 0) is infinite, and so is the result's distance.
  const auto below = [](const StatedMedian& stated) { return std::log(stated.median / stated.interval.low); };
  const auto above = [](const StatedMedian& stated) { return std::log(stated.interval.high / stated.median); };
  const double ratio = a.median / reference.median;
  return {ratio, {ratio * std::exp(-std::hypot(below(a), above(reference))), ratio * std::exp(std::hypot(above(a), below(reference)))}};
}

}  // namespace firkin
