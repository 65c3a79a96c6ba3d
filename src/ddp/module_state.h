// What a module holds, kept the same on all ranks while it is trained: parameters that come and go, buffers that follow rank 0's.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {

// Whether a module trains the same parameters as when it was looked at last, and, where its modules are awaited, has them in the same ones.
// Not thread-safe.
class ParameterWatch {
 public:
  ParameterWatch(const torch::nn::Module& module, bool modules_too) : module_(&module), modules_too_(modules_too) {}

  // Compares every parameter's identity and requires_grad: about 0.1 us each.
  bool has_changed() const;
  void look();

 private:
  const torch::nn::Module* module_;
  bool modules_too_;
  std::vector<std::pair<const void*, bool>> seen_;  // in the order of the tree
};

// All tensors of a device travel as bytes in one broadcast, whatever their dtypes. Not thread-safe.
class TensorBroadcast {
 public:
  // gradients: a group that carries every device. beside: the group for those that it carries.
  TensorBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, const std::vector<at::Tensor>& tensors);

  // Starts sending the root's values. Collective.
  void launch(int root);
  // Waits, and keeps what came or not. Throws RuntimeError when the collective failed.
  void wait(bool keep);

 private:
  struct Together {
    at::Tensor bytes;               // what travels
    std::vector<at::Tensor> parts;  // views of it, one per tensor
    std::vector<at::Tensor> tensors;
    ProcessGroup group;
    Work work;
  };
  static Together gather(const std::vector<at::Tensor>& tensors, const ProcessGroup& group);

  int rank_ = 0;
  std::vector<Together> devices_;
  int root_ = 0;
};

// The root's values to all ranks, up to 64 MiB at a time, or one larger tensor. Collective. Throws GroupError when a collective failed.
void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root);

}  // namespace firkin
