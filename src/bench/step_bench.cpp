#include "bench/step_bench.h"

#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>
#include <utility>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/plan/launch_order.h"
#include "firkin/stats/summary.h"

#include <torch/optim/sgd.h>

namespace firkin {
namespace {

// Times of one setting in one block: [step][rank].
struct BlockTimes {
  std::vector<std::vector<double>> step_s;
  std::vector<std::vector<double>> comm_s;
  double communication_s = 0;
  int64_t buckets = 0;
};

// [rank][value] -> [value][rank]
std::vector<std::vector<double>> transposed(const std::vector<std::vector<double>>& by_rank, size_t first, size_t count) {
  std::vector<std::vector<double>> result(count);
  for (size_t i = 0; i < count; ++i) {
    for (const auto& values : by_rank) result[i].push_back(values[first + i]);
  }
  return result;
}

// The collectives of a step and nothing else, as its strategy sends them: one blocking call after another, or all under way together.
double time_communication(const ProcessGroup& group, const std::vector<BucketStats>& buckets, const Strategy& strategy) {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> received;  // of strategy sharded
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(group.device);
  for (const BucketStats& bucket : buckets) {
    tensors.push_back(at::zeros({bucket.bytes_on_wire / 4}, options));
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

// Steps that reach into one another, as those of `ordered`, have a period only: the slower rank of one step may be the faster of the next,
// and the slowest of every step adds up to more than they take. So their time is the mean over several.
constexpr int kStepsOfAPeriod = 4;

bool steps_overlap(const StepSetting& setting) {
  return setting.options.strategy.wait != Wait::kAtStepEnd;
}

void replace_by_mean(std::vector<double>& times, int count) {
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  times.assign(static_cast<size_t>(count), mean);
}

BlockTimes measure_block(const ProcessGroup& group, Workload& workload, const StepSetting& setting, const StepBenchOptions& options,
                         int64_t& next_step) {
  StepRunner runner(group, workload, setting.options);
  const int warmup_steps = options.warmup_steps + steps_to_learn(setting.options);
  const int timed_steps = steps_overlap(setting) ? std::max(options.steps_per_block, kStepsOfAPeriod) : options.steps_per_block;
  std::vector<double> ours;  // step times, then comm times
  std::vector<double> comm;
  for (int i = 0; i < warmup_steps + timed_steps; ++i) {
    // Not between steps that overlap: communication would go on in the barrier, unseen.
    if (i == 0 || !steps_overlap(setting)) barrier(group);
    const StepTimes times = runner.step(next_step++);
    if (i < warmup_steps) continue;
    ours.push_back(times.step_s);
    comm.push_back(times.comm_s);
  }
  runner.drain();
  if (steps_overlap(setting)) {
    replace_by_mean(ours, options.steps_per_block);
    replace_by_mean(comm, options.steps_per_block);
  }
  ours.insert(ours.end(), comm.begin(), comm.end());
  const std::vector<BucketStats> buckets = runner.buckets();
  ours.push_back(options.communication_alone ? time_communication(group, buckets, setting.options.strategy) : 0);
  const auto by_rank = all_gather(group, ours);
  return {.step_s = transposed(by_rank, 0, comm.size()),
          .comm_s = transposed(by_rank, comm.size(), comm.size()),
          .communication_s = std::ranges::max(transposed(by_rank, 2 * comm.size(), 1)[0]),
          .buckets = std::ssize(buckets)};
}

double median_of_slowest_rank(const std::vector<std::vector<double>>& by_step) {
  std::vector<double> slowest;
  for (const auto& ranks : by_step) slowest.push_back(*std::ranges::max_element(ranks));
  return median(slowest);
}

}  // namespace

StepRunner::StepRunner(const ProcessGroup& group, Workload& workload, DataParallelOptions options) : workload_(workload) {
  if (options.strategy.launch == Launch::kByTorch) {
    peer_.emplace(*workload.module, group,
                  TorchPeerOptions{.cap = options.cap,
                                   .ready_order = options.ready_order,
                                   .broadcast_parameters = options.broadcast_parameters,
                                   .broadcast_buffers = options.broadcast_buffers});
    return;
  }
  options.finish_with_backward = static_cast<bool>(workload.whole_step);
  if (!options.broadcast_parameters) options.audit_every = 0;  // settings without communication have left the ranks different
  const bool shards = options.strategy.shards;
  ddp_.emplace(*workload.module, group, std::move(options));
  if (shards) {
    sharded_.emplace(*ddp_, [&workload](const std::vector<NamedTensor>& parts) {
      return std::make_unique<torch::optim::SGD>(tensors_of(parts), workload.optimizer->param_groups()[0].options().get_lr());
    });
  } else if (workload.optimizer) {
    overlapped_.emplace(*ddp_, *workload.optimizer);
  }
}

StepTimes StepRunner::step(int64_t step) {
  RECORD_USER_SCOPE(kStepPhase);
  const auto now = [device = device_of(workload_)] { return device_now(device); };
  const auto started = now();
  forget_gradients(workload_);
  if (peer_) peer_->prepare();
  if (workload_.whole_step) {
    workload_.whole_step();
    if (peer_) peer_->rebuild_buckets();
    return {.step_s = seconds_between(started, now()), .comm_s = ddp_ ? ddp_->stats().exposed_wait_s : 0};
  }
  at::Tensor loss;
  {
    RECORD_USER_SCOPE("forward");
    loss = workload_.loss(step);
  }
  {
    RECORD_USER_SCOPE(kBackwardPhase);
    loss.backward();
  }
  const auto backward_ended = now();
  {
    RECORD_USER_SCOPE("synchronisation");
    if (ddp_) ddp_->finish_gradient_synchronization();
    if (peer_) peer_->rebuild_buckets();
  }
  const auto synchronized = now();
  {
    RECORD_USER_SCOPE(kOptimizerPhase);
    if (overlapped_) overlapped_->step();
    if (sharded_) sharded_->step();
    if (peer_) workload_.optimizer->step();
  }
  loss.reset();  // and the graph with it: training loops hold both until the next step
  const auto ended = now();
  return {.step_s = seconds_between(started, ended), .comm_s = seconds_between(backward_ended, synchronized)};
}

void StepRunner::drain() {
  if (overlapped_) overlapped_->drain();
  if (sharded_) ddp_->drain();
}

std::vector<BucketStats> StepRunner::buckets() const {
  if (ddp_) return ddp_->stats().buckets;
  std::vector<BucketStats> buckets;
  for (const int64_t bytes : peer_->bucket_bytes()) buckets.push_back({.bytes = bytes, .bytes_on_wire = bytes});
  return buckets;
}

StepBenchResult measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                              const StepBenchOptions& options) {
  if (settings.empty() || options.blocks < 1 || options.warmup_steps < 1 || options.steps_per_block < 1) {
    throw InputError("step benchmark: expected at least one setting, block, warm-up step and timed step");
  }
  StepBenchResult result;
  result.step_s.resize(settings.size());
  result.comm_s.resize(settings.size());
  result.raw_step_s.resize(settings.size());
  if (options.communication_alone) result.communication_s.resize(settings.size());
  result.buckets.resize(settings.size());
  std::vector<size_t> order(settings.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  int64_t next_step = 0;
  for (int block = 0; block < options.blocks; ++block) {
    std::ranges::shuffle(order, random);
    for (const size_t setting : order) {
      BlockTimes times = measure_block(group, workload, settings[setting], options, next_step);
      result.step_s[setting].push_back(median_of_slowest_rank(times.step_s));
      result.comm_s[setting].push_back(median_of_slowest_rank(times.comm_s));
      std::ranges::move(times.step_s, std::back_inserter(result.raw_step_s[setting]));
      if (options.communication_alone) result.communication_s[setting].push_back(times.communication_s);
      result.buckets[setting] = times.buckets;
      if (options.on_progress) options.on_progress(fmt::format("block {}, {}", block + 1, settings[setting].name));
    }
    if (options.is_enough && options.is_enough(result)) break;
  }
  return result;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, name, activity, thread, start_ns, end_ns, elements)

namespace {

std::vector<Period> steps_in(const std::vector<Span>& spans) {
  std::vector<Period> steps;
  for (const Span& span : spans) {
    if (span.activity == Activity::kPhase && span.name == kStepPhase) steps.push_back({span.start_ns, span.end_ns});
  }
  return steps;
}

std::vector<Span> record_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options,
                               const StepTraceOptions& trace, std::vector<BucketStats>& buckets) {
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  for (int i = 0; i < trace.warmup_steps + steps_to_learn(options); ++i) runner.step(step++);
  TraceRecorder recorder(device_of(workload).type());
  for (int i = 0; i < trace.steps; ++i) {
    if (options.strategy.wait == Wait::kAtStepEnd) barrier(group);
    runner.step(step++);
  }
  runner.drain();  // no collective may be under way when recording stops
  buckets = runner.buckets();
  return recorder.stop();
}

}  // namespace

StepTrace trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options, const StepTraceOptions& trace) {
  if (trace.warmup_steps < 1 || trace.steps < 1) throw InputError("trace: expected at least one step and one warm-up step");
  StepTrace result;
  const std::vector<Span> recorded = record_steps(group, workload, options, trace, result.buckets);
  std::vector<Span> ours;  // without the barriers between steps
  for (const Period& step : steps_in(recorded)) {
    for (const Span& span : spans_between(recorded, step.start_ns, step.end_ns)) ours.push_back(span);
  }
  for (const std::string& text : gather_texts(group, nlohmann::json(ours).dump())) {
    result.ranks.push_back(nlohmann::json::parse(text).get<std::vector<Span>>());
  }
  return result;
}

std::optional<double> idle_though_ready(const std::vector<BucketStats>& buckets) {
  const auto times = [&](double BucketStats::*time) {
    std::vector<double> of_buckets;
    for (const BucketStats& bucket : buckets) of_buckets.push_back(bucket.*time);
    return of_buckets;
  };
  const std::vector<double> ready_s = times(&BucketStats::ready_s);
  const double backward_s = ready_s.empty() ? 0 : std::ranges::max(ready_s);
  if (backward_s <= 0) return std::nullopt;
  return idle_though_ready_s(ready_s, times(&BucketStats::launch_s), times(&BucketStats::end_s), backward_s) / backward_s;
}

std::vector<TracedStep> traced_steps(const std::vector<Span>& spans) {
  std::vector<TracedStep> steps;
  for (const Period& period : steps_in(spans)) {
    steps.push_back({period, overlap_of(spans_cut_to(spans, period.start_ns, period.end_ns))});
  }
  return steps;
}

}  // namespace firkin
