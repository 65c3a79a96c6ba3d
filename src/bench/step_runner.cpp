#include "bench/step_runner.h"

#include <ATen/record_function.h>

#include <memory>
#include <utility>

#include "comm/device_time.h"
#include "firkin/ddp/module_parameters.h"

#include <torch/optim/sgd.h>

namespace firkin {

StepRunner::StepRunner(const ProcessGroup& group, Workload& workload, DataParallelOptions options) : workload_(workload) {
  if (options.strategy.launch == Launch::kByTorch) {
    peer_.emplace(*workload.module, group, options);
    return;
  }
  options.finish_with_backward = static_cast<bool>(workload.whole_step);
  // After a setting without communication parameters differ between ranks, so an audit would fail.
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

}  // namespace firkin
