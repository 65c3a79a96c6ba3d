// Medians, intervals that are valid for any distribution of the noise, and comparisons of settings.
//
//   const Summary step = summarize(step_s);               // step.median, step.p99, ... in the unit of step_s
//   const Interval call = median_interval(call_s);        // holds the true median in 95 of 100 measurements
//   const PairedRatio overlap = paired_ratio(overlap_s, flat_s);  // of settings measured in the same blocks
//   overlap.ratio;     // 0.91: nine percent less time than flat
//   overlap.interval;  // {0.90, 0.93}; 1 is outside, so the difference is real
//
// Every function is deterministic and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace firkin {

// ---- Order statistics and moments of a sample.

struct Summary {
  double median = 0;
  double mean = 0;
  double stdev = 0;  // the sample's, with divisor count - 1; 0 for a single value
  double min = 0;
  double max = 0;
  double p99 = 0;
  int64_t count = 0;
};

// These functions throw std::invalid_argument when `values` is empty or holds a value that is not finite. They are O(n).

// The middle value, or the mean of the two middle values.
double median(std::span<const double> values);

// The value below which the fraction q of the sample lies: linearly interpolated between the order statistics at rank
// q * (n - 1) (type 7 of Hyndman and Fan 1996; the default of R and NumPy). q = 0 is the minimum, q = 1 the maximum.
// Throws std::invalid_argument unless 0 <= q <= 1.
double quantile(std::span<const double> values, double q);

// The median of each column. All rows have the same length.
std::vector<double> column_medians(const std::vector<std::vector<double>>& rows);

// The arithmetic mean.
double mean(std::span<const double> values);

// Standard deviation with divisor n - 1; 0 for a single value.
double stdev(std::span<const double> values);

// The members of Summary at once.
Summary summarize(std::span<const double> values);

// ---- The normal distribution.

// Standard errors between the middle of a normal distribution and either end of its middle 90 and 95 %.
inline constexpr double kNormal90 = 1.645;
inline constexpr double kNormal95 = 1.96;

// ---- Confidence intervals of medians.
//
// All are 95 % intervals. Their ends are order statistics: the number of n samples below the median is binomial
// (Thompson 1936). Interpolation between ranks gives exactly that confidence (Hettmansperger and Sheather 1986). An
// interval is never wider than the range of its samples; if these have two modes, it may reach from one to the other.

struct Interval {
  double low = 0;
  double high = 0;

  bool contains(double value) const { return low <= value && value <= high; }
};

// The range of six samples holds the median with 96.9 %, that of five with 93.75 %, so fewer than six give no bound.
inline constexpr size_t kFewestSamples = 6;

// The interval of the median of independent samples, in any order. With fewer than kFewestSamples: {0, infinity} if all
// are positive, else {-infinity, infinity}. O(n log n). Throws std::invalid_argument if `samples` is empty or not
// finite.
Interval median_interval(std::span<const double> samples);

// The interval of the median of a series in the order measured, whose neighbours may be correlated. More than 32
// samples are condensed to the medians of 32 stretches. If these are still correlated (rank correlation r of
// neighbours), n counts as n (1 - r) / (1 + r). A short series cannot show a long memory: for normal series with a
// correlation of 0.6, the interval held the true median in 77 % of cases with 6 samples, 87 % with 10, 93 % with 20 and
// 96 % with 100. To compare settings, measure them in the same blocks, where common noise cancels.
Interval series_interval(std::span<const double> samples);

// The standard error of the median, from the width of series_interval(); none with fewer than kFewestSamples. Throws as
// series_interval().
std::optional<double> series_error(std::span<const double> samples);

// ---- Two settings compared by their ratio.

struct PairedRatio {
  double ratio = 1;
  Interval interval;
};

// The Hodges-Lehmann estimate (1963) of log(a / reference), exponentiated, with the interval of Wilcoxon's signed ranks
// (Tukey 1949). Noise common to a block cancels. If every block runs the settings in random order, the interval for two
// equal settings excludes 1 in at most 5 % of cases, whatever the noise.
//
// a, reference: seconds (or any positive quantity) of block 0, 1, ... in the order measured; the same blocks in both.
// More than 100 are condensed to the medians of as many stretches, since the estimate is quadratic in their number.
// confidence: that of the interval, between 0 and 1. It takes 6 blocks for 95 %, 8 for 99 %; with fewer the interval is
// {0, infinity}. Throws std::invalid_argument if there is no block, if one setting has more blocks than the other, or if
// a value is not positive and finite.
PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, double confidence = 0.95);

// ---- Settings measured in the same blocks: each setting's time with the machine's good and bad stretches removed.
//
//   const BlockFit fit = fit_blocks(step_s);  // [setting][block]
//   fit[3].median;    // 0.085: seconds of a step in a typical block
//   fit[3].interval;  // {0.079, 0.092}
//
// Fits setting + block + noise to the logarithms of times by median polish (Tukey 1977). Intervals come from the order
// statistics of the times less block effects; a single setting gets the interval of its series. On recorded noise
// (tests/stats/data; 6 to 30 blocks) the 95 % intervals of eight settings hold the true median in 93 to 96 %, those of
// four in 91 to 94 % (once 84), of two in 87 to 93 % (once 79).

struct SettingFit {
  double median = 0;  // in a typical block, in the unit of the samples
  // Unbounded with fewer than kFewestSamples blocks; never wider than the samples' range.
  Interval interval;
};

using BlockFit = std::vector<SettingFit>;  // one per setting

// settings_by_block: [setting][block], the same blocks for every setting, in the order measured. O(settings * blocks *
// settings). Throws std::invalid_argument when there is no setting or no block, when settings differ in their number of
// blocks, or a sample is not positive and finite.
BlockFit fit_blocks(const std::vector<std::vector<double>>& settings_by_block);

struct IndifferenceSet {
  size_t best = 0;              // index of the setting
  std::vector<size_t> members;  // indices, ascending; best is one of them
  // Per setting: its time divided by that of the best, with the interval that decided.
  std::vector<PairedRatio> to_best;
};

// The best setting is the one with the lowest median of fit_blocks(), or the first of equals. A setting is a member if
// its interval reaches down to 1.
//
// The best of several equal settings is also the luckiest, so a difference must exceed what luck produces: residuals
// are shuffled among the settings of each block, and 97.5 % of 1,000 shuffles stay below the threshold (multiple
// comparisons with the best, one-sided: Hsu 1984). This assumes similar noise in all settings; in case one is noisier,
// the pair's own interval must exclude 1 as well, and to_best holds the farther end on either side.
//
// settings_by_block: [setting][block], seconds; block b was measured in the same stretch of time for every setting, in
// random order. With fewer than kFewestSamples blocks every setting is a member. 8 settings take 0.07 s with 30 blocks
// and 0.8 s with 1,000. Throws std::invalid_argument as fit_blocks().
IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block);

}  // namespace firkin
