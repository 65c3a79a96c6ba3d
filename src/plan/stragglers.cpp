#include "firkin/plan/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

using Matrix = std::vector<std::vector<double>>;

void check_times(const Matrix& times_by_rank, int64_t ranks) {
  if (times_by_rank.empty() || times_by_rank[0].empty()) throw InputError("no rank's time was measured; expected at least one");
  if (ranks < 1) throw InputError(fmt::format("the slowest of {} ranks; expected at least 1", ranks));
  for (const std::vector<double>& times : times_by_rank) {
    if (times.size() != times_by_rank[0].size()) {
      throw InputError(fmt::format("a rank has {} times; expected {}, as many as the first", times.size(), times_by_rank[0].size()));
    }
    for (const double time : times) {
      if (!std::isfinite(time) || time <= 0) throw InputError(fmt::format("a rank took {} s; expected more than 0", time));
    }
  }
}

// E[max] over draws from the rows, `draws_each` from each.
double expected_max(const Matrix& rows, double draws_each) {
  std::vector<std::pair<double, size_t>> sorted;  // time, row
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const double time : rows[i]) sorted.emplace_back(time, i);
  }
  std::ranges::sort(sorted);
  std::vector<double> up_to(rows.size(), 0);  // how many of each row
  size_t rows_begun = 0;
  double log_probability = 0;  // that all draws are among the times so far, once every row has one
  double below = 0;
  double expectation = 0;
  for (const auto& [time, row] : sorted) {
    const auto count = static_cast<double>(rows[row].size());
    if (up_to[row] == 0) ++rows_begun;
    log_probability += draws_each * (up_to[row] == 0 ? -std::log(count) : std::log((up_to[row] + 1) / up_to[row]));
    ++up_to[row];
    if (rows_begun < rows.size()) continue;
    const double probability = std::exp(log_probability);
    expectation += time * (probability - below);
    below = probability;
  }
  return expectation;
}

// E[max of `draws`], more than there are samples, if these go on as an exponential tail.
double tail_expected_max(std::vector<double> samples, double draws) {
  constexpr size_t kTailShare = 10;  // the tail is a tenth of the samples
  std::ranges::sort(samples);
  const size_t count = std::max<size_t>(1, samples.size() / kTailShare);
  if (samples.size() <= count) return samples.back();  // a single sample
  const double threshold = samples[samples.size() - count - 1];
  double excess = 0;
  for (size_t i = samples.size() - count; i < samples.size(); ++i) excess += samples[i] - threshold;
  excess /= static_cast<double>(count);
  const double above = std::max(1.0, draws * static_cast<double>(count) / static_cast<double>(samples.size()));
  return threshold + excess * (std::log(above) + std::numbers::egamma);
}

}  // namespace

Straggler expected_straggler(const Matrix& times_by_rank, int64_t ranks) {
  check_times(times_by_rank, ranks);
  const auto measured = static_cast<double>(times_by_rank.size());
  // What the other ranks say of a step is noisy as well.
  const double own_part = measured > 1 ? std::sqrt((measured - 1) / measured) : 1;
  Matrix typical;                    // [rank][step], without what slows all ranks of a step
  std::vector<double> levels, left;  // of each rank; what is left of each time, as a ratio
  for (const SettingFit& rank : fit_blocks(times_by_rank)) {
    levels.push_back(rank.median);
    typical.emplace_back();
    for (const double time : rank.polished) {
      left.push_back(std::pow(time / rank.median, own_part));
      typical.back().push_back(rank.median * left.back());
    }
  }
  const auto draws = static_cast<double>(ranks);
  const double measured_max_s = expected_max(typical, 1);
  const double slowest = std::ranges::max(levels);
  Straggler result{.expected_max_s = expected_max(typical, draws / measured)};
  result.factor = result.expected_max_s / measured_max_s;
  result.slowest_rank_ratio = slowest / median(levels);
  result.beyond_samples = ranks > static_cast<int64_t>(left.size());
  result.tail_factor = result.factor;
  if (!result.beyond_samples) return result;
  const double tail_s = std::max(median(levels) * tail_expected_max(left, draws), slowest * tail_expected_max(left, draws / measured));
  result.tail_factor = std::max(result.factor, tail_s / measured_max_s);
  return result;
}

}  // namespace firkin
