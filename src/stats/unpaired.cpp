#include "firkin/stats/unpaired.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "firkin/stats/summary.h"

namespace firkin {

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
