#include "bench/step_bench.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "comm/across_ranks.h"
#include "comm/backends.h"
#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/estimates.h"

#include <torch/headeronly/version.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace firkin {

namespace {

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

// Broadcasts in pieces of the size that DistributedDataParallel uses.
void broadcast_from_rank_0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty()) c10d::broadcast_coalesced(group.c10d, tensors, 250 * kMiB);
}

// The Reducer expects forward order, the reverse of gradient-ready order.
std::vector<NamedTensor> in_forward_order(const std::vector<NamedTensor>& registered, std::vector<int64_t> ready_order) {
  if (ready_order.empty()) return registered;
  std::vector<NamedTensor> result;
  for (auto parameter = ready_order.rbegin(); parameter != ready_order.rend(); ++parameter) {
    result.push_back(registered.at(static_cast<size_t>(*parameter)));
  }
  return result;
}

std::shared_ptr<c10d::Reducer> make_reducer(const ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                                            const DataParallelOptions& options) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names[tensors.size()] = parameter.name;
    tensors.push_back(parameter.tensor);
  }
  const std::vector<bool> dense(tensors.size(), false);
  const int64_t cap = options.cap.cap_bytes;
  const int64_t first_cap = options.cap.first_cap_bytes.value_or(cap);
  // Caps are dealt out in the order of the tensors that are passed: gradient-ready order, so that the first bucket is
  // the first to go.
  const std::vector<at::Tensor> in_ready_order(tensors.rbegin(), tensors.rend());
  std::vector<int64_t> indices(tensors.size());
  std::iota(indices.rbegin(), indices.rend(), 0);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      in_ready_order, {static_cast<size_t>(first_cap), static_cast<size_t>(cap)}, dense, indices, {}));
  return std::make_shared<c10d::Reducer>(tensors, std::move(buckets), group.c10d, dense, cap, /*find_unused_parameters=*/false,
                                         /*gradient_as_bucket_view=*/true, names, first_cap, /*skip_all_reduce_unused_params=*/false,
                                         /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
}

}  // namespace

TorchPeer::TorchPeer(const torch::nn::Module& module, const ProcessGroup& group, const DataParallelOptions& options) : group_(group) {
  const std::vector<NamedTensor> parameters = in_forward_order(trainable_parameters(module), options.ready_order);
  if (parameters.empty()) throw InputError("the strategy torch: the module has no trainable parameter");
  const std::vector<at::Tensor> buffers = detached(module.buffers());
  if (options.broadcast_parameters) {
    broadcast_from_rank_0(group, detached(module.parameters()));
    broadcast_from_rank_0(group, buffers);
  }
  if (options.broadcast_buffers) buffers_ = buffers;
  reducer_ = make_reducer(group, parameters, options);
  logger_ = std::make_shared<c10d::Logger>(reducer_);
}

void TorchPeer::prepare() {
  broadcast_from_rank_0(group_, buffers_);
  reducer_->prepare_for_backward({});
}

void TorchPeer::rebuild_buckets() {
  reducer_->rebuild_buckets();
}

std::vector<int64_t> TorchPeer::bucket_bytes() const {
  std::vector<int64_t> bytes;
  for (c10d::GradBucket& bucket : reducer_->get_grad_buckets()) bytes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  return bytes;
}

namespace {

// [value][rank]. Collective.
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
    // Only an all-reduce computes. A rank's part of a sharded bucket need not be a whole number of floats.
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

// Steps that overlap, like those of `ordered`, only have a period: the slower rank in one step may be the faster in the
// next, so the slowest rank's times add up to more than the steps take. Their time is the mean over several steps.
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
    // Not between steps that overlap: a barrier would hide their communication.
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
    row.overlap_percent = std::clamp(100 * (1 - *row.exposed_s / all_s), 0.0, 100.0);  // that backward hid, as OSU defines it
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

StepRunner::StepRunner(const ProcessGroup& group, Workload& workload, DataParallelOptions options) : workload_(workload) {
  if (options.strategy.launch == Launch::kByTorch) {
    peer_.emplace(*workload.module, group, options);
    return;
  }
  options.finish_with_backward = static_cast<bool>(workload.whole_step);
  // Ranks differ after settings without communication.
  if (!options.broadcast_parameters) options.audit_every = 0;
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
  loss.reset();  // frees the graph too: training loops keep both until the next step
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

void add_ranks(const ProcessGroup& group, Environment& environment) {
  environment.libtorch = TORCH_VERSION;
  environment.backend = group.backend;
  environment.device = c10::DeviceTypeName(group.device.type(), /*lower_case=*/true);
  if (group.device.is_cuda()) {
    environment.gpu = gpus_in_words();
    environment.nccl = nccl_version();
    // "highest": float32 is multiplied as float32; "high", "medium": as TF32, or less.
    const bool is_exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
    environment.float32_matmul = is_exact ? "float32" : "TF32 or less";
  }
  environment.world_size = group.size;
  environment.threads_per_rank = at::get_num_threads();
  if (!group.link.empty()) environment.link = group.link;
  std::vector<Host> of_ranks;
  for (const std::string& text : gather_texts(group, dump_json(json_of(this_host())))) {
    of_ranks.push_back(value_from_json<Host>(nlohmann::json::parse(text), ""));
  }
  environment.hosts = by_host(of_ranks);
  environment.cpu = environment.hosts[0].cpu;
  environment.cores = environment.hosts[0].cores;
  environment.os = environment.hosts[0].os;
}

}  // namespace firkin
