#include "step_rows.h"

#include <algorithm>

#include "firkin/stats/block_fit.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"

namespace firkin::cli {
namespace {

// Median over the steps of how much longer the slowest rank took than the fastest, as a share of the slowest's time.
double rank_spread(const std::vector<std::vector<double>>& by_step) {
  std::vector<double> spreads;
  for (const auto& ranks : by_step) {
    const auto [fastest, slowest] = std::ranges::minmax(ranks);
    spreads.push_back((slowest - fastest) / slowest);
  }
  return median(spreads);
}

// The share of the communication that backward hid, in percent (OSU's definition): max(0, 100 (1 - exposed / communication)).
void add_overlap(const Cell& cell, double communication_s, StrategyRow& row) {
  if (cell.setting.options.strategy.launch != Launch::kWhenReady || communication_s <= 0) return;
  row.communication_s = communication_s;
  row.overlap_percent = std::clamp(100 * (1 - *row.exposed_s / communication_s), 0.0, 100.0);
}

StrategyRow row_of(const Cell& cell, const StepBenchResult& result, const BlockFit& fit, size_t i, const ModelDescription& model,
                   int world_size) {
  constexpr double kMicro = 1e6;
  StrategyRow row{.strategy = cell.strategy, .cap_mib = cell.cap_mib, .buckets = result.buckets[i], .measured_s = fit[i].median};
  row.measured_ci_s = fit[i].interval;
  row.exposed_s = fit[0].median * (paired_ratio(result.step_s[i], result.step_s[0]).ratio - 1);
  row.comm_s = median(result.comm_s[i]);
  row.comm_share = *row.comm_s / row.measured_s;
  row.rank_spread = rank_spread(result.raw_step_s[i]);
  row.per_tensor_us = *row.exposed_s / static_cast<double>(model.tensors.value_or(1)) * kMicro;
  add_overlap(cell, median(result.communication_s[i]), row);
  if (model.batch_size) row.tokens_per_s = static_cast<double>(world_size * *model.batch_size * *model.sequence_length) / row.measured_s;
  return row;
}

// `bucketed` beside `torch` under the same cap.
void add_ratio_to_torch(const std::vector<Cell>& cells, const StepBenchResult& result, size_t i, StrategyRow& row) {
  if (cells[i].strategy != "bucketed") return;
  const auto peer = std::ranges::find_if(cells, [&](const Cell& c) { return c.strategy == "torch" && c.cap_mib == cells[i].cap_mib; });
  if (peer == cells.end()) return;
  const PairedRatio ratio = paired_ratio(result.step_s[i], result.step_s[static_cast<size_t>(peer - cells.begin())]);
  row.ratio_to_torch = ratio.ratio;
  row.ratio_to_torch_ci = ratio.interval;
}

}  // namespace

StepConfiguration measured_configuration(const Configuration& configuration, const std::vector<Cell>& cells, const StepBenchResult& result,
                                         const std::vector<StepMemory>& memory, int world_size) {
  StepConfiguration measured{.model = configuration.description, .status = "measured", .reason = {}, .strategies = {}, .samples = {}};
  const BlockFit fit = fit_blocks(result.step_s);
  for (size_t i = 0; i < cells.size(); ++i) {
    StrategyRow row = row_of(cells[i], result, fit, i, configuration.description, world_size);
    row.peak_memory_bytes = memory[i].peak_bytes;
    row.memory_between_steps_bytes = memory[i].between_steps_bytes;
    add_ratio_to_torch(cells, result, i, row);
    measured.strategies.push_back(std::move(row));
  }
  measured.samples.step_s = result.step_s;
  measured.samples.comm_s = result.comm_s;
  measured.samples.communication_s = result.communication_s;
  measured.samples.raw_step_s_by_rank = result.raw_step_s;
  return measured;
}

}  // namespace firkin::cli
