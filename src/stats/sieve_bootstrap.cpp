#include "sieve_bootstrap.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "normal_noise.h"

namespace firkin {

namespace {

// Chosen by the coverage of simulated series (the table in interval.h), not by theory. Without the margin, ten samples with correlation
// 0.6 are covered in 90.8 % instead of 94.5 %; without smoothing, the intervals of ten independent samples are a seventh wider.
constexpr double kPullInDeviations = 3;      // residuals further out than this many standard deviations are pulled in to there
constexpr double kCorrelationMargin = 1.25;  // standard errors, 1 / sqrt(n) each, that the correlation is taken above its estimate
constexpr double kSmoothing = 0.4;           // of the innovations, in standard deviations, times n^(-1/5)

// Noise that is slow and fast at once (a neighbour's load, and the timer's) has less correlation between neighbours than its memory
// deserves. The means of 2, 4, 8, ... neighbours show it, so the fit is repeated for those while there are this many, and the largest
// result counts.
constexpr size_t kFewestMeans = 10;

// A line through the samples is taken for drift, not for noise, when its slope is this many of its standard errors. Fewer samples than this
// cannot tell drift from slow noise: docs/decisions.md.
constexpr double kDriftThreshold = 3.5;
constexpr size_t kFewestForDrift = 16;

double select_median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

void subtract_mean(std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (double& value : values) value -= mean;
}

double robust_stdev(const std::vector<double>& residuals, std::vector<double>& scratch) {
  scratch.resize(residuals.size());
  std::ranges::transform(residuals, scratch.begin(), [](double residual) { return std::abs(residual); });
  return kStdevPerMedianDeviation * select_median(scratch);
}

// How many times larger the variance of the mean of n values of a first-order autoregression is than that of n independent ones.
double variance_inflation(double correlation, double n) {
  const double apart = 1 - correlation;
  return (1 + correlation) / apart - 2 * correlation * (1 - std::pow(correlation, n)) / (n * apart * apart);
}

// A series of n values cannot show that its memory is longer than half of itself: 1 / (1 - correlation) <= n / 2.
double largest_correlation(double n) {
  return 1 - 2 / n;
}

struct Autoregression {
  double correlation = 0;    // of neighbours
  double mean_variance = 0;  // of the mean of the values
};

// First-order. `values` are four or more, and what is left of samples after `fitted` parameters: their mean (1), or a line (2).
Autoregression fit_autoregression(const std::vector<double>& values, int fitted) {
  double squares = values[0] * values[0];
  double products = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    squares += values[i] * values[i];
    products += values[i] * values[i - 1];
  }
  if (squares == 0) return {};
  const auto n = static_cast<double>(values.size());
  // The estimate is low by (1 + 3 rho) / n about a mean (Kendall 1954), by (2 + 4 rho) / n about a line.
  const double unbiased = (n * products / squares + fitted) / (n - 2 - fitted);
  const double correlation = std::clamp(unbiased + kCorrelationMargin / std::sqrt(n), 0.0, largest_correlation(n));
  const double inflation = variance_inflation(correlation, n);
  return {.correlation = correlation, .mean_variance = squares / std::max(1.0, n - fitted * inflation) * inflation / n};
}

// Replaces every two neighbours by their mean; a last odd value is left out.
void halve_by_means(std::vector<double>& values) {
  const size_t half = values.size() / 2;
  for (size_t i = 0; i < half; ++i) values[i] = 0.5 * (values[2 * i] + values[2 * i + 1]);
  values.resize(half);
  subtract_mean(values);
}

// Adds a line that is 0 in the middle.
void add_line(std::vector<double>& values, double slope) {
  const double middle = 0.5 * static_cast<double>(values.size() - 1);
  for (size_t i = 0; i < values.size(); ++i) values[i] += slope * (static_cast<double>(i) - middle);
}

// Subtracts the least-squares line when it is drift, and returns its slope; else returns 0. `values` have the mean 0.
double subtract_drift(std::vector<double>& values, std::vector<double>& scratch) {
  if (values.size() < kFewestForDrift) return 0;
  const double middle = 0.5 * static_cast<double>(values.size() - 1);
  double products = 0;
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double distance = static_cast<double>(i) - middle;
    products += distance * values[i];
    squares += distance * distance;
  }
  const double slope = products / squares;
  scratch = values;
  add_line(scratch, -slope);
  const double variance = fit_autoregression(scratch, 2).mean_variance * static_cast<double>(values.size()) / squares;
  if (std::abs(slope) <= kDriftThreshold * std::sqrt(variance)) return 0;
  values = scratch;
  return slope;
}

// A number below `count`, alike on every standard library (std::uniform_int_distribution is not).
size_t random_index(std::mt19937_64& random, size_t count) {
  return static_cast<size_t>(((random() >> 32) * count) >> 32);
}

// Between -1 and 1, bell-shaped: the sum of three uniform numbers.
double random_bell(std::mt19937_64& random) {
  constexpr uint64_t kMask = (uint64_t{1} << 21) - 1;
  const uint64_t bits = random();
  const uint64_t sum = (bits & kMask) + ((bits >> 21) & kMask) + ((bits >> 42) & kMask);
  return static_cast<double>(sum) * (2.0 / (3.0 * static_cast<double>(kMask))) - 1;
}

// First-order autoregression with the correlation of `residuals` and innovations like theirs.
class SyntheticSeries {
 public:
  SyntheticSeries(const std::vector<double>& residuals, double correlation, uint64_t seed) : correlation_(correlation), random_(seed) {
    for (size_t i = 1; i < residuals.size(); ++i) innovations_.push_back(residuals[i] - correlation * residuals[i - 1]);
    subtract_mean(innovations_);
    std::vector<double> scratch;
    // The sum of three uniform numbers within +-1 has the standard deviation 1/3.
    smoothing_ = 3 * kSmoothing * robust_stdev(innovations_, scratch) * std::pow(static_cast<double>(residuals.size()), -0.2);
  }

  void draw(std::vector<double>& series) {
    double value = draw_innovation() / std::sqrt(1 - correlation_ * correlation_);
    for (double& element : series) {
      element = value;
      value = correlation_ * value + draw_innovation();
    }
  }

 private:
  double draw_innovation() { return innovations_[random_index(random_, innovations_.size())] + smoothing_ * random_bell(random_); }

  double correlation_;
  double smoothing_ = 0;
  std::mt19937_64 random_;
  std::vector<double> innovations_;
};

}  // namespace

MedianEstimate estimate_median(std::vector<double>& samples, std::vector<double>& scratch) {
  MedianEstimate estimate;
  scratch = samples;
  estimate.median = select_median(scratch);
  for (double& sample : samples) sample -= estimate.median;
  const double limit = kPullInDeviations * robust_stdev(samples, scratch);
  if (limit > 0) {
    for (double& sample : samples) sample = std::clamp(sample, -limit, limit);
  }
  subtract_mean(samples);

  estimate.slope = subtract_drift(samples, scratch);
  const Autoregression fit = fit_autoregression(samples, estimate.slope == 0 ? 1 : 2);
  estimate.correlation = fit.correlation;
  double variance = fit.mean_variance;
  scratch = samples;
  while (scratch.size() >= 2 * kFewestMeans) {
    halve_by_means(scratch);
    variance = std::max(variance, fit_autoregression(scratch, 1).mean_variance);
  }
  estimate.standard_error = std::sqrt(variance);
  return estimate;
}

namespace {

// What a series says of its median, and what synthetic series like it say of theirs.
struct MedianDraws {
  MedianEstimate estimate;
  std::vector<MedianEstimate> draws;  // empty when all samples are equal; medians relative to that of the synthetic process
};

MedianDraws draw_medians(std::span<const double> samples, uint64_t seed, int resamples) {
  std::vector<double> residuals(samples.begin(), samples.end());
  std::vector<double> scratch;
  MedianDraws result{.estimate = estimate_median(residuals, scratch), .draws = {}};
  if (result.estimate.standard_error == 0) return result;

  SyntheticSeries synthetic(residuals, result.estimate.correlation, seed);
  result.draws.resize(static_cast<size_t>(resamples));
  std::vector<double> medians;
  medians.reserve(result.draws.size());
  for (MedianEstimate& draw : result.draws) {
    residuals.resize(samples.size());
    synthetic.draw(residuals);
    add_line(residuals, result.estimate.slope);
    draw = estimate_median(residuals, scratch);
    medians.push_back(draw.median);
  }
  // The median of the synthetic process, which is not zero when the noise is skewed.
  const double centre = select_median(medians);
  for (MedianEstimate& draw : result.draws) draw.median -= centre;
  return result;
}

// The distance that the fraction `confidence` of the resamples stays within. Reorders `distances`, which are not empty.
double critical_distance(std::vector<double>& distances, double confidence) {
  const auto resamples = static_cast<int64_t>(distances.size());
  const auto rank = static_cast<int64_t>(std::ceil(confidence * static_cast<double>(resamples + 1))) - 1;
  const auto critical = distances.begin() + std::min(rank, resamples - 1);
  std::nth_element(distances.begin(), critical, distances.end());
  return *critical;
}

}  // namespace

Interval sieve_bootstrap_median(std::span<const double> samples, uint64_t seed, double confidence, int resamples) {
  const auto [estimate, draws] = draw_medians(samples, seed, resamples);
  if (draws.empty()) return {estimate.median, estimate.median};
  std::vector<double> distances;
  distances.reserve(draws.size());
  for (const MedianEstimate& draw : draws) {
    distances.push_back(draw.standard_error > 0 ? std::abs(draw.median) / draw.standard_error : 0.0);
  }
  const double half_width = critical_distance(distances, confidence) * estimate.standard_error;
  return {estimate.median - half_width, estimate.median + half_width};
}

Interval sieve_bootstrap_difference(std::span<const double> a, std::span<const double> b, uint64_t seed, double confidence, int resamples) {
  // Two seeds: series drawn from the same random numbers would resemble each other.
  const MedianDraws of_a = draw_medians(a, seed, resamples);
  const MedianDraws of_b = draw_medians(b, ~seed, resamples);
  const double difference = of_a.estimate.median - of_b.estimate.median;
  if (of_a.draws.empty() && of_b.draws.empty()) return {difference, difference};
  std::vector<double> distances(static_cast<size_t>(resamples));
  for (size_t i = 0; i < distances.size(); ++i) {
    const MedianEstimate draw_a = of_a.draws.empty() ? MedianEstimate{} : of_a.draws[i];
    const MedianEstimate draw_b = of_b.draws.empty() ? MedianEstimate{} : of_b.draws[i];
    const double standard_error = std::hypot(draw_a.standard_error, draw_b.standard_error);
    distances[i] = standard_error > 0 ? std::abs(draw_a.median - draw_b.median) / standard_error : 0.0;
  }
  const double standard_error = std::hypot(of_a.estimate.standard_error, of_b.estimate.standard_error);
  const double half_width = critical_distance(distances, confidence) * standard_error;
  return {difference - half_width, difference + half_width};
}

}  // namespace firkin
