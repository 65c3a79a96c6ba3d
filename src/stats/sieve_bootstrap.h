// The interval of a median when neighbouring samples resemble each other. Internal to stats/; interval.h says what is promised.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "firkin/stats/interval.h"

namespace firkin {

// A median, and how far the sample says it may be off.
struct MedianEstimate {
  double median = 0;
  double standard_error = 0;  // up to a factor that depends on the shape of the noise: only ratios to it are used
  double correlation = 0;     // of neighbouring samples, a cautious estimate, from 0 to 1 - 2 / n
  double slope = 0;           // of the drift per sample; 0 where none stands out
};

// Replaces `samples` by their residuals (centred, far ones pulled in, plain drift subtracted). `scratch` is overwritten. Four samples or
// more.
MedianEstimate estimate_median(std::vector<double>& samples, std::vector<double>& scratch);

// median +- c * standard_error, where |median* - centre| / standard_error* is below c in the fraction `confidence` of `resamples` series
// that are drawn from a first-order autoregression with the samples' own correlation, drift and (smoothed) innovations. Four samples or
// more.
Interval sieve_bootstrap_median(std::span<const double> samples, uint64_t seed, double confidence, int resamples);

// The same for median(a) - median(b) of two independent series, whose standard errors add as squares.
Interval sieve_bootstrap_difference(std::span<const double> a, std::span<const double> b, uint64_t seed, double confidence, int resamples);

}  // namespace firkin
