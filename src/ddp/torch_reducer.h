// c10d::Reducer, PyTorch's own bucketed reducer, driven from C++: the peer that Firkin's strategies are compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/bucket_assignment.h"

namespace firkin {

struct TorchReducerOptions {
  CapOptions cap;                       // the rule is always PyTorch's, close-when-full
  bool gradient_as_bucket_view = true;  // false: a second copy of every gradient, as in PyTorch's default
  bool find_unused_parameters = false;
};

// Works within backward: when it returns, gradients are reduced. Its hooks go with it.
class TorchReducer {
 public:
  // ready_order: indices into parameters. Throws InputError when this LibTorch's Reducer has another constructor (before 2.13).
  TorchReducer(const ProcessGroup& group, const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& ready_order,
               const TorchReducerOptions& options);
  ~TorchReducer();

  // After every backward: rebuilds the buckets once the ready order is known, and arms the next step.
  void finish_step();

  // Bytes of each bucket.
  std::vector<int64_t> bucket_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace firkin
