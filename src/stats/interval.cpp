#include "firkin/stats/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "sieve_bootstrap.h"

namespace firkin {

Interval bootstrap_median(std::span<const double> samples, uint64_t seed, double confidence, int resamples) {
  if (samples.empty()) throw std::invalid_argument("an interval from no samples");
  if (!std::ranges::all_of(samples, [](double sample) { return std::isfinite(sample); })) {
    throw std::invalid_argument("an interval from a sample that is not finite");
  }
  if (!(confidence > 0 && confidence < 1)) throw std::invalid_argument("a confidence outside 0 to 1");
  if (resamples < 1) throw std::invalid_argument("a bootstrap without resamples");

  const bool positive = std::ranges::all_of(samples, [](double sample) { return sample > 0; });
  if (samples.size() < kFewestSamples) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return {positive ? 0 : -kInfinity, kInfinity};
  }
  if (!positive) return sieve_bootstrap_median(samples, seed, confidence, resamples);

  std::vector<double> logarithms(samples.size());
  std::ranges::transform(samples, logarithms.begin(), [](double sample) { return std::log(sample); });
  const Interval interval = sieve_bootstrap_median(logarithms, seed, confidence, resamples);
  return {std::exp(interval.low), std::exp(interval.high)};
}

}  // namespace firkin
