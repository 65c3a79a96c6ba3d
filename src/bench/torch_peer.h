// c10d::Reducer, PyTorch's own bucketed reducer, driven from C++: the peer that Firkin's strategies are compared with.
//
//   TorchPeer peer(*net, group, options);
//   for (...) {
//     peer.prepare();
//     loss().backward();  // when it returns, gradients are the mean over the ranks
//     optimizer.step();
//     peer.rebuild_buckets();
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/options.h"

#include <torch/nn/module.h>

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace firkin {

// For one experiment: with none of the guarantees of DataParallel. A parameter without a gradient is an error of the
// next step, and a backward that throws on one rank leaves the others waiting. Gradients that are views of the
// Reducer's buckets refuse detach_(): reset them to undefined before a step.
//
// Construction, prepare() and rebuild_buckets() are collective; errors are those of c10d. The destructor removes the
// Reducer's hooks. The group and the module must outlive it.
class TorchPeer {
 public:
  // Uses only these options: cap (the rule is always PyTorch's, close-when-full), ready_order (for the first step),
  // broadcast_parameters, and broadcast_buffers (before every step, as DistributedDataParallel sends them). Throws
  // InputError when the module has no trainable parameter.
  TorchPeer(const torch::nn::Module& module, const ProcessGroup& group, const DataParallelOptions& options);
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  // Call it before the forward of a step. A backward without it accumulates on this rank only.
  void prepare();

  // Call it after a step: lays the buckets out in the order in which gradients were ready. Does so once, and nothing
  // from then on.
  void rebuild_buckets();

  std::vector<int64_t> bucket_bytes() const;

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> buffers_;  // those that are sent before every step
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer expects one
};

}  // namespace firkin
