#include "firkin/plan/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

// E[max of `draws`], more than there are samples, if these go on as an exponential tail.
double tail_expected_max(const std::vector<double>& sorted, double draws) {
  constexpr size_t kTailShare = 10;  // the tail is a tenth of the samples
  const size_t count = std::max<size_t>(1, sorted.size() / kTailShare);
  if (sorted.size() <= count) return sorted.back();  // a single sample
  const double threshold = sorted[sorted.size() - count - 1];
  double excess = 0;
  for (size_t i = sorted.size() - count; i < sorted.size(); ++i) excess += sorted[i] - threshold;
  excess /= static_cast<double>(count);
  const double above = draws * static_cast<double>(count) / static_cast<double>(sorted.size());
  return threshold + excess * (std::log(above) + std::numbers::egamma);
}

}  // namespace

Straggler expected_straggler(std::span<const double> samples, int64_t ranks) {
  if (samples.empty()) throw InputError("no rank's time was measured; expected at least one");
  if (ranks < 1) throw InputError(fmt::format("the slowest of {} ranks; expected at least 1", ranks));
  for (const double sample : samples) {
    if (!std::isfinite(sample) || sample <= 0) throw InputError(fmt::format("a rank took {} s; expected more than 0", sample));
  }
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  const auto draws = static_cast<double>(ranks);
  Straggler result;
  double below = 0;  // the probability that all draws are among the samples so far
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double up_to = std::pow(static_cast<double>(i + 1) / n, draws);
    result.expected_max_s += sorted[i] * (up_to - below);
    below = up_to;
  }
  const double median_s = median(sorted);
  result.factor = result.expected_max_s / median_s;
  result.beyond_samples = ranks > static_cast<int64_t>(sorted.size());
  result.tail_factor = result.factor;
  if (result.beyond_samples) result.tail_factor = std::max(result.factor, tail_expected_max(sorted, draws) / median_s);
  return result;
}

}  // namespace firkin
