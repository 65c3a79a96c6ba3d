#include "results/sample_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/shape.h"
#include "results/numbers.h"
#include "results/results.h"

namespace firkin {
namespace {

using Series = std::vector<std::vector<double>>;

template <class Row>
void mark(Row& row, const std::string& name, const SettingFit& fit, std::vector<std::string>& notes) {
  row.outliers = static_cast<int64_t>(fit.outliers.size());
  if (!fit.modes) return;
  row.modes_s = Interval{fit.modes->low, fit.modes->high};
  notes.push_back(fmt::format("Samples of {} lie around {} or around {} ({} of them) and not between; the median is in one of the two.",
                              name, display_seconds(fit.modes->low), display_seconds(fit.modes->high),
                              display_percent(fit.modes->high_share)));
}

// One series a row, in the order of the rows.
template <class Row, class Name>
void mark_series(std::vector<Row>& rows, const Series& samples, const Name& name_of_row, std::vector<std::string>& notes) {
  for (size_t i = 0; i < std::min(rows.size(), samples.size()); ++i) {
    if (samples[i].empty()) continue;
    SettingFit alone;
    alone.outliers = find_outliers(samples[i]);
    alone.modes = find_two_modes(samples[i]);
    mark(rows[i], name_of_row(rows[i]), alone, notes);
  }
}

std::string name_of_strategy(const StrategyRow& row) {
  return row.cap_mib ? fmt::format("{} {:.6g} MiB", row.strategy, *row.cap_mib) : row.strategy;
}

// Strategies, then caps, in the order of the samples; nothing where there are no samples of each.
void mark_steps(std::vector<StrategyRow>& strategies, std::vector<CurveRow>& curve, const Series& step_s, const std::string& place,
                std::vector<std::string>& notes) {
  if (step_s.empty() || step_s.size() != strategies.size() + curve.size()) return;
  const BlockFit fit = fit_blocks(step_s);
  for (size_t i = 0; i < strategies.size(); ++i) mark(strategies[i], place + name_of_strategy(strategies[i]), fit[i], notes);
  for (size_t i = 0; i < curve.size(); ++i) {
    mark(curve[i], fmt::format("{}{:.6g} MiB", place, curve[i].cap_mib), fit[strategies.size() + i], notes);
  }
}

}  // namespace

void mark_sample_shapes(Results& results) {
  std::vector<std::string>& notes = results.notes;
  std::vector<CurveRow> no_curve;
  if (results.step_samples) {
    const Series& step_s = results.step_samples->step_s;
    mark_steps(results.strategies, step_s.size() == results.strategies.size() ? no_curve : results.curve, step_s, "", notes);
  }
  for (StepConfiguration& configuration : results.configurations) {
    mark_steps(configuration.strategies, no_curve, configuration.samples.step_s, name_of(configuration.model) + ": ", notes);
  }
  if (results.allreduce_samples) {
    mark_series(
        results.allreduce, results.allreduce_samples->isolated_s, [](const AllReduceRow& row) { return format_bytes(row.bytes); }, notes);
  }
  mark_series(
      results.chunks, results.chunk_totals_s, [](const ChunksRow& row) { return format_bytes(row.chunk_bytes); }, notes);
}

}  // namespace firkin
