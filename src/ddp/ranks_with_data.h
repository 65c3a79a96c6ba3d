// Which ranks have a batch in this step, while a Join scope lives.
#pragma once

#include <ATen/core/Tensor.h>

#include "firkin/comm/process_group.h"

namespace firkin {

// The exchange is the first collective of a step, so that it is complete long before the gradients are. Not thread-safe.
class RanksWithData {
 public:
  // Starts a step's exchange. Collective.
  void announce(const ProcessGroup& group, bool we_have);

  // Wait for it. Throw RuntimeError when it failed.
  int count();
  int first();

 private:
  void complete();

  Work work_;
  at::Tensor has_data_;  // [world size], 1 where the rank has data
};

}  // namespace firkin
