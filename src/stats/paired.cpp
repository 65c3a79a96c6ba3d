#include "firkin/stats/paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "firkin/stats/summary.h"

namespace firkin {

namespace {

constexpr size_t kMostBlocks = 100;

// How many of the outermost pairwise means of n differences lie outside the interval on each side. None: its range does not suffice.
size_t means_outside(size_t n, double confidence) {
  // probability[t]: that the ranks of the positive differences add up to t, when each sign is a toss.
  std::vector<double> probability(n * (n + 1) / 2 + 1, 0);
  probability[0] = 1;
  for (size_t rank = 1; rank <= n; ++rank) {
    for (size_t t = probability.size(); t-- > 0;) probability[t] = 0.5 * (probability[t] + (t >= rank ? probability[t - rank] : 0));
  }
  size_t outside = 0;
  for (double below = probability[0]; below <= (1 - confidence) / 2; below += probability[outside]) ++outside;
  return outside;
}

}  // namespace

std::vector<double> pairwise_means(std::span<const double> values) {
  std::vector<double> means;
  means.reserve(values.size() * (values.size() + 1) / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) means.push_back(0.5 * (values[i] + values[j]));
  }
  return means;
}

PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, double confidence) {
  if (a.size() != reference.size()) throw std::invalid_argument("a paired ratio of samples from different numbers of blocks");
  if (a.empty()) throw std::invalid_argument("a paired ratio of no blocks");
  if (!(confidence > 0 && confidence < 1)) throw std::invalid_argument("a confidence outside 0 to 1");
  std::vector<double> differences;
  for (size_t block = 0; block < a.size(); ++block) {
    differences.push_back(std::log(a[block]) - std::log(reference[block]));
    if (!std::isfinite(differences.back())) throw std::invalid_argument("a paired ratio of a value that is not positive and finite");
  }
  differences = medians_of_stretches(differences, kMostBlocks);
  std::vector<double> means = pairwise_means(differences);
  std::ranges::sort(means);
  const size_t outside = means_outside(differences.size(), confidence);
  const double middle = std::exp(median(means));
  if (outside == 0) return {middle, {0, std::numeric_limits<double>::infinity()}};
  return {middle, {std::exp(means[outside - 1]), std::exp(means[means.size() - outside])}};
}

namespace {

void require_stated(const StatedMedian& stated) {
  if (!(stated.median > 0 && std::isfinite(stated.median))) {
    throw std::invalid_argument("a stated median that is not positive and finite");
  }
  if (!stated.interval.contains(stated.median)) throw std::invalid_argument("a stated median outside its interval");
}

StatedMedian stated_of(std::span<const double> samples) {
  if (std::ranges::any_of(samples, [](double sample) { return !(sample > 0); })) {
    throw std::invalid_argument("a ratio of a value that is not positive");
  }
  return {median(samples), series_interval(samples)};
}

}  // namespace

PairedRatio ratio_of_stated(const StatedMedian& a, const StatedMedian& reference) {
  require_stated(a);
  require_stated(reference);
  // An interval that reaches down to 0 is one without a lower end: log(median / 0) is infinite, and so is the result's distance.
  const auto below = [](const StatedMedian& stated) { return std::log(stated.median / stated.interval.low); };
  const auto above = [](const StatedMedian& stated) { return std::log(stated.interval.high / stated.median); };
  const double ratio = a.median / reference.median;
  return {ratio, {ratio * std::exp(-std::hypot(below(a), above(reference))), ratio * std::exp(std::hypot(above(a), below(reference)))}};
}

PairedRatio unpaired_ratio(std::span<const double> a, std::span<const double> reference) {
  return ratio_of_stated(stated_of(a), stated_of(reference));
}

}  // namespace firkin
