#include "train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "comm/across_ranks.h"
#include "firkin/base/units.h"

#include <torch/utils.h>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

ProcessGroup checked(ProcessGroup group, const TrainSettings& settings, const Strategy& strategy) {
  check_batch(settings.batch, group.size);
  if (strategy.shards && settings.clip_each_norm > 0) {
    throw InputError("the strategy sharded cannot clip each gradient by its own norm; expected the global norm");
  }
  return group;
}

}  // namespace

void check_batch(int64_t batch, int world_size) {
  if (batch >= world_size && batch % world_size == 0) return;
  throw InputError(fmt::format("a batch of {} sequences on {} ranks; expected a multiple of the number of ranks", batch, world_size));
}

Trainer::Trainer(ProcessGroup group, std::shared_ptr<torch::nn::Module> module, LossFunction loss, TrainingData data,
                 TrainSettings settings, const DataParallelOptions& options)
    : group_(checked(std::move(group), settings, options.strategy)),
      control_(companion(group_)),
      module_(std::move(module)),
      loss_(std::move(loss)),
      data_(std::move(data)),
      settings_(settings),
      ddp_(*module_, group_, options),
      reads_norm_(settings.clip_norm > 0 || options.strategy.wait == Wait::kAtStepEnd) {
  if (options.strategy.shards) {
    sharded_.emplace(
        ddp_, [&](const std::vector<NamedTensor>& parts) { return make_adamw(*module_, settings.adamw, parts); },
        ShardedOptions{.master_weights = settings.adamw.master_weights});
  } else {
    overlapped_.emplace(ddp_, optimizer(), OverlappedOptions{.clip_norm = 0, .clip_each_norm = settings.clip_each_norm});
  }
}

TrainingAdamW& Trainer::optimizer() {
  if (optimizer_ == nullptr) optimizer_ = make_adamw(*module_, settings_.adamw);
  return *optimizer_;
}

void Trainer::gather_optimizer() {
  if (!sharded_) return;
  sharded_->gather_into(optimizer(), 0);
  const std::vector<NamedTensor> masters = sharded_->gather_masters(0);
  for (const auto& [name, parameter] : trainable_parameters(*module_)) {
    const auto master = std::ranges::find(masters, name, &NamedTensor::name);
    if (master != masters.end()) optimizer().set_stepped(parameter, master->tensor);
  }
}

void Trainer::scatter_optimizer() {
  if (!sharded_) return;
  sharded_->load_from(optimizer());
  std::vector<NamedTensor> masters;
  for (const auto& [name, parameter] : trainable_parameters(*module_)) {
    if (optimizer().has_master(parameter)) masters.push_back({name, optimizer().stepped(parameter)});
  }
  sharded_->load_masters(masters);
  release_optimizer();
}

void Trainer::release_optimizer() {
  if (sharded_) optimizer_.reset();
}

// Gradients are the same on every rank, or gone.
void Trainer::skip_step() {
  if (sharded_) {
    sharded_->optimizer().zero_grad();
    return sharded_->step();
  }
  overlapped_->drain();
  for (const at::Tensor& parameter : module_->parameters()) parameter.mutable_grad().reset();
}

// First sample and rows of each pass of this rank in the next step.
std::vector<std::pair<int64_t, int64_t>> Trainer::micro_batches() const {
  const int64_t share = settings_.batch / group_.size;
  const int64_t first = next_step_ * settings_.batch + group_.rank * share;
  const int64_t most = settings_.micro_batch > 0 ? settings_.micro_batch : share;
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int64_t done = 0; done < share; done += most) result.emplace_back(first + done, std::min(most, share - done));
  return result;
}

// Returns the mean loss of this rank's share.
double Trainer::accumulate_gradients(StepReport& report) {
  const int64_t share = settings_.batch / group_.size;
  const auto passes = micro_batches();
  double mean = 0;
  for (size_t i = 0; i < passes.size(); ++i) {
    const auto [first, rows] = passes[i];
    const auto before = Clock::now();
    const TokenBatch batch = training_batch(data_, first, rows);
    report.data_s += seconds_since(before);
    ddp_.set_gradient_synchronization(i + 1 == passes.size());
    const at::Tensor loss = loss_(batch) * (static_cast<double>(rows) / static_cast<double>(share));
    loss.backward();
    mean += loss.item<double>();
  }
  return mean;
}

std::string Trainer::why_not_finite(const std::vector<double>& losses) {
  std::vector<std::function<at::Tensor()>> passes;
  for (const auto& [first, rows] : micro_batches()) {
    passes.emplace_back([this, from = first, count = rows] { return loss_(training_batch(data_, from, count)); });
  }
  return fmt::format("step {}: {}", next_step_, describe_nonfinite(control_, *module_, passes, losses));
}

StepReport Trainer::step(bool stop) {
  const auto started = Clock::now();
  StepReport report{.step = next_step_, .learning_rate = learning_rate(settings_.schedule, next_step_), .gradient_norm = {}};
  torch::manual_seed(mixed(mixed(data_.training.seed + static_cast<uint64_t>(next_step_)) + static_cast<uint64_t>(group_.rank)));
  for (const at::Tensor& parameter : module_->parameters()) parameter.mutable_grad().reset();
  const double our_loss = accumulate_gradients(report);
  if (reads_norm_) {
    report.gradient_norm = clip_gradients(settings_.clip_norm > 0 ? settings_.clip_norm : std::numeric_limits<float>::max());
  }

  const auto by_rank = all_gather(control_, {our_loss, stop ? 1.0 : 0.0});
  std::vector<double> losses;
  for (const auto& rank : by_rank) {
    losses.push_back(rank[0]);
    report.stop = report.stop || rank[1] > 0;
  }
  report.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());

  // Gradients, and so their norm, are the same bits on every rank: all decide alike.
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm.value_or(0))) {
    report.skipped = why_not_finite(losses);
    skip_step();
    if (settings_.on_nonfinite == OnNonFinite::kStop) throw NonFiniteError(report.skipped);
  } else {
    set_learning_rate(sharded_ ? sharded_->optimizer() : optimizer(), report.learning_rate);
    sharded_ ? sharded_->step() : overlapped_->step();
  }
  ++next_step_;
  const DataParallelStats stats = ddp_.stats();
  report.exposed_s = stats.exposed_wait_s + stats.forward_wait_s;
  report.step_s = seconds_since(started);
  return report;
}

std::optional<double> Trainer::evaluate(int64_t windows) {
  const int64_t count = std::min(windows, data_.held_windows);
  if (count < 1) return std::nullopt;
  ddp_.module();  // drained
  module_->eval();
  const int64_t share = (count + group_.size - 1) / group_.size;
  const int64_t first = std::min(count, group_.rank * share);
  const int64_t last = std::min(count, first + share);
  const int64_t most = settings_.micro_batch > 0 ? settings_.micro_batch : settings_.batch / group_.size;
  double sum = 0;
  {
    const at::NoGradGuard no_grad;
    for (int64_t at = first; at < last; at += most) {
      const int64_t rows = std::min(most, last - at);
      sum += loss_(held_batch(data_, at, rows)).item<double>() * static_cast<double>(rows);
    }
  }
  module_->train();
  return sum_over_ranks(control_, sum) / static_cast<double>(count);
}

}  // namespace firkin
