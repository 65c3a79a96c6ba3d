#include "bench/step_bench.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <utility>

#include "bench/step_runner.h"
#include "comm/across_ranks.h"
#include "comm/device_time.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// Every rank's values: [value][rank]. Collective.
std::vector<std::vector<double>> of_all_ranks(const ProcessGroup& group, const std::vector<double>& values) {
  std::vector<std::vector<double>> result(values.size());
  for (const std::vector<double>& of_rank : all_gather(group, values)) {
    for (size_t i = 0; i < values.size(); ++i) result[i].push_back(of_rank[i]);
  }
  return result;
}

// Seconds for the collectives of a step and nothing else, as its strategy sends them: one blocking call after another,
// or all in flight together.
double time_communication(const ProcessGroup& group, const std::vector<BucketStats>& buckets, const Strategy& strategy) {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> received;  // for strategy sharded
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(group.device);
  for (const BucketStats& bucket : buckets) {
    // Only an all-reduce adds numbers up. A rank's part of a sharded bucket need not be a whole number of floats, and
    // travels as bytes.
    tensors.push_back(strategy.shards ? at::zeros({bucket.bytes_on_wire}, options.dtype(at::kByte))
                                      : at::zeros({bucket.bytes_on_wire / 4}, options));
    if (strategy.shards) received.push_back(at::zeros_like(tensors.back()));
  }
  std::vector<Work> under_way;
  const auto wait_for_all = [&] {
    for (const Work& work : under_way) wait(group, work, "a collective");
    under_way.clear();
  };
  barrier(group);
  const DeviceTime started = device_now(group.device);
  for (size_t i = 0; i < tensors.size(); ++i) {
    under_way.push_back(strategy.shards ? start_all_to_all(group, received[i], tensors[i]) : start_all_reduce(group, tensors[i]));
    if (strategy.launch == Launch::kAfterBackward) wait_for_all();
  }
  wait_for_all();
  for (size_t i = 0; i < received.size(); ++i) {
    under_way.push_back(start_all_gather(group, received[i], tensors[i].narrow(0, 0, tensors[i].numel() / group.size)));
  }
  wait_for_all();
  return seconds_between(started, device_now(group.device));
}

// Note [Steps that overlap]
// Under strategies that wait at the first use of a parameter, such as `ordered`, communication of one step runs under the
// forward pass of the next. Such steps only have a period: the rank that is slower in one step may be faster in the next,
// so the slowest rank's times would add up to more than the steps take. Hence a block times at least kStepsOfAPeriod steps,
// every one of which counts with their mean, and has no barrier between them, which would hide their communication.
constexpr int kStepsOfAPeriod = 4;

bool steps_overlap(const StepSetting& setting) {
  return setting.options.strategy.wait != Wait::kAtStepEnd;
}

void replace_by_mean(std::vector<double>& times, int count) {
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  times.assign(static_cast<size_t>(count), mean);
}

double median_of_slowest_rank(const std::vector<std::vector<double>>& by_step) {
  std::vector<double> slowest;
  for (const auto& ranks : by_step) slowest.push_back(*std::ranges::max_element(ranks));
  return median(slowest);
}

// Measures a block and adds its times to the setting's.
void measure_block(const ProcessGroup& group, Workload& workload, const StepSetting& setting, const StepCounts& steps,
                   const StepBenchOptions& options, int64_t& next_step, SettingSteps& times) {
  StepRunner runner(group, workload, setting.options);
  std::vector<double> ours, comm;
  for (int i = 0; i < steps.warmup_steps + steps.timed_steps; ++i) {
    // See Note [Steps that overlap].
    if (i == 0 || !steps_overlap(setting)) barrier(group);
    const StepTimes taken = runner.step(next_step++);
    if (i < steps.warmup_steps) continue;
    ours.push_back(taken.step_s);
    comm.push_back(taken.comm_s);
  }
  runner.drain();
  if (steps_overlap(setting)) {
    replace_by_mean(ours, options.steps.timed_steps);
    replace_by_mean(comm, options.steps.timed_steps);
  }
  const std::vector<BucketStats> buckets = runner.buckets();
  if (options.communication_alone) {
    times.communication_s.push_back(max_over_ranks(group, {time_communication(group, buckets, setting.options.strategy)})[0]);
  }
  std::vector<std::vector<double>> step_s = of_all_ranks(group, ours);
  times.step_s.push_back(median_of_slowest_rank(step_s));
  times.comm_s.push_back(median_of_slowest_rank(of_all_ranks(group, comm)));
  std::ranges::move(step_s, std::back_inserter(times.raw_step_s));
  times.buckets = std::ssize(buckets);
}

// Median over the steps of how much longer the slowest rank took than the fastest, as a share of the slowest's time.
double rank_spread(const std::vector<std::vector<double>>& by_step) {
  std::vector<double> spreads;
  for (const auto& ranks : by_step) {
    const auto [fastest, slowest] = std::ranges::minmax(ranks);
    spreads.push_back((slowest - fastest) / slowest);
  }
  return median(spreads);
}

StrategyRow row_of(const StepSetting& setting, const std::vector<SettingSteps>& steps, const BlockFit& fit, size_t i,
                   const ModelDescription& model, int world_size) {
  constexpr double kMicro = 1e6;
  StrategyRow row{.strategy = std::string(setting.options.strategy.name),
                  .cap_bytes = setting.cap_bytes,
                  .buckets = steps[i].buckets,
                  .measured_s = fit[i].median};
  row.measured_ci_s = fit[i].interval;
  row.exposed_s = fit[0].median * (paired_ratio(steps[i].step_s, steps[0].step_s).ratio - 1);
  row.comm_s = median(steps[i].comm_s);
  row.comm_share = *row.comm_s / row.measured_s;
  row.rank_spread = rank_spread(steps[i].raw_step_s);
  row.per_tensor_us = *row.exposed_s / static_cast<double>(model.tensors.value_or(1)) * kMicro;
  if (const double all_s = median(steps[i].communication_s); setting.options.strategy.launch == Launch::kWhenReady && all_s > 0) {
    row.communication_s = all_s;
    row.overlap_percent = std::clamp(100 * (1 - *row.exposed_s / all_s), 0.0, 100.0);  // that computation hid
  }
  if (model.batch_size) row.tokens_per_s = static_cast<double>(world_size * *model.batch_size * *model.sequence_length) / row.measured_s;
  return row;
}

// Compares `bucketed` with `torch` under the same cap.
void add_ratio_to_torch(const std::vector<StepSetting>& settings, const std::vector<SettingSteps>& steps, size_t i, StrategyRow& row) {
  if (settings[i].options.strategy.name != "bucketed") return;
  const auto peer = std::ranges::find_if(settings, [&](const StepSetting& other) {
    return other.options.strategy.name == "torch" && other.cap_bytes == settings[i].cap_bytes;
  });
  if (peer == settings.end()) return;
  const PairedRatio ratio = paired_ratio(steps[i].step_s, steps[static_cast<size_t>(peer - settings.begin())].step_s);
  row.ratio_to_torch = ratio.ratio;
  row.ratio_to_torch_ci = ratio.interval;
}

}  // namespace

std::vector<SettingSteps> measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                                        const StepBenchOptions& options) {
  std::vector<SettingSteps> result;
  std::vector<StepCounts> steps;
  for (const StepSetting& setting : settings) {
    result.push_back({.name = setting.name});
    steps.push_back({.warmup_steps = options.steps.warmup_steps + steps_to_learn(setting.options),
                     .timed_steps = std::max(options.steps.timed_steps, steps_overlap(setting) ? kStepsOfAPeriod : 0)});
  }
  StepSchedule schedule(steps, options.blocks);
  const auto started = std::chrono::steady_clock::now();
  int64_t next_step = 0;
  while (const std::optional<StepVisit> visit = schedule.next()) {
    measure_block(group, workload, settings[visit->setting], visit->steps, options, next_step, result[visit->setting]);
    if (options.on_progress) options.on_progress(fmt::format("block {}, {}", visit->block + 1, settings[visit->setting].name));
    if (!visit->ends_block) {
      schedule.tell();
      continue;
    }
    const double elapsed_s = of_rank_0(group, seconds_since(started));
    schedule.tell(elapsed_s, options.is_enough && options.is_enough(result));
  }
  return result;
}

StepConfiguration measured_configuration(const ModelDescription& model, const std::vector<StepSetting>& settings,
                                         const std::vector<SettingSteps>& steps, const std::vector<StepMemory>& memory, int world_size) {
  const BlockFit fit = fit_blocks(series_of(steps));
  StepConfiguration measured{.model = model, .samples = samples_of(steps)};
  for (size_t i = 0; i < settings.size(); ++i) {
    StrategyRow& row = measured.strategies.emplace_back(row_of(settings[i], steps, fit, i, model, world_size));
    row.peak_memory_bytes = memory[i].peak_bytes;
    row.memory_between_steps_bytes = memory[i].between_steps_bytes;
    add_ratio_to_torch(settings, steps, i, row);
  }
  return measured;
}

}  // namespace firkin
