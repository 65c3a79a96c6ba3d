#include "firkin/plan/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/stats/summary.h"

namespace firkin {

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
  result.factor = result.expected_max_s / median(sorted);
  result.beyond_samples = ranks > static_cast<int64_t>(sorted.size());
  return result;
}

}  // namespace firkin
