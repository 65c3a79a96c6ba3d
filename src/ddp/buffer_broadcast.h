// A module's buffers (batch norm's statistics, say), made equal to one rank's after every step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

// All buffers of a device travel in one broadcast, whatever their dtypes: beside the gradients' buckets, or behind them where only their
// group carries tensors of that device. Not thread-safe.
class BufferBroadcast {
 public:
  // gradients: the group of the buckets, which carries every device. beside: the group for those that it carries.
  BufferBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, std::vector<at::Tensor> buffers);

  // Starts sending the root's values. Collective.
  void launch(int root);
  // Waits, and keeps what came or not. Throws RuntimeError when the collective failed.
  void wait(bool keep);

 private:
  struct Together {
    at::Tensor bytes;               // what travels
    std::vector<at::Tensor> parts;  // views of it, one per buffer
    std::vector<at::Tensor> buffers;
    ProcessGroup group;
    Work work;
  };
  static Together gather(const std::vector<at::Tensor>& buffers, const ProcessGroup& group);

  int rank_ = 0;
  std::vector<Together> devices_;
  int root_ = 0;
};

}  // namespace firkin
