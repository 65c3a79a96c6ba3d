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
};

// Why the Reducer of this LibTorch cannot be used; empty when it can.
std::string torch_reducer_unavailable();

// One step: prepare(), then backward, in which its hooks reduce; when backward returns, gradients are reduced, unless a parameter got none.
// Its hooks go with it.
class TorchReducer {
 public:
  // ready_order: indices into parameters. Throws InputError when this LibTorch's Reducer has another constructor (before 2.13).
  TorchReducer(const ProcessGroup& group, const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& ready_order,
               const TorchReducerOptions& options);
  ~TorchReducer();

  // Before the first gradient of a step. Without it gradients are left alone.
  void prepare();

  // Within backward: a parameter that backward has not reached counts as reached, with the gradient that it has or with zeros.
  void mark_ready(size_t parameter);

  // After a step: adapts the buckets to the order in which gradients were ready, once. Collective.
  void rebuild_buckets();

  // Bytes of each bucket.
  std::vector<int64_t> bucket_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace firkin
