// Do the ranks still hold the same? Checksums of parameters and optimiser states, compared every so many steps.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"

namespace torch::optim {
class Optimizer;
}

namespace firkin {

// Of each tensor a multiplicative hash of its bytes, as fast as memory; 0 for an undefined or empty one. A device's are hashed there (so
// the result is another than on the CPU): one number for each tensor is copied, all together, and waited for.
std::vector<uint64_t> checksums_of(const std::vector<NamedTensor>& tensors);

// A few of the tensor's bytes, by which to see that somebody has written to it: an optimiser, say. (LibTorch's own write through data(),
// which counts no version.) On a device, which would have to be waited for, the version alone. Never blocks; about 20 ns.
using Trace = std::array<uint64_t, 4>;
Trace trace_of(const at::Tensor& tensor);

// Per tensor, over the ranks; for the ones that differ the first rank whose checksum is not rank 0's, otherwise nothing. Collective.
std::vector<std::optional<int>> differing_ranks(const ProcessGroup& group, const std::vector<NamedTensor>& tensors);

// The state that an optimiser of LibTorch keeps for these parameters; nothing of another maker's. What it has not made yet is undefined.
std::vector<NamedTensor> state_of(const torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters);

// What it steps beside the module's parameters, "tensor 2 of the optimiser's group 0"; but for parameters of other wrapped modules, which
// may be in flight, and are audited there.
std::vector<NamedTensor> outside_of(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);

// The options of each of an optimiser's groups, as bytes. Of an optimiser of LibTorch.
std::vector<NamedTensor> group_options_of(const torch::optim::Optimizer& optimizer);

// Not thread-safe.
class Audit {
 public:
  using Tensors = std::function<std::vector<NamedTensor>()>;

  // every: steps; 0: never. parameters: those of the module, now.
  Audit(int64_t every, Tensors parameters) : every_(every) { add(this, std::move(parameters)); }

  // owner: for remove().
  void add(const void* owner, Tensors tensors) { audited_.emplace_back(owner, std::move(tensors)); }
  void remove(const void* owner) {
    std::erase_if(audited_, [owner](const auto& each) { return each.first == owner; });
  }
  bool is_due(int64_t step) const { return every_ > 0 && step % every_ == 0; }
  uint64_t checksum() const;
  void note_equal(int64_t step) { equal_at_ = step; }

  // After checksums that differed: what differs now, the same text on every rank; empty: nothing does any more. Collective.
  std::string explain(const ProcessGroup& group, int64_t step) const;

 private:
  std::vector<NamedTensor> tensors() const;

  int64_t every_;
  std::vector<std::pair<const void*, Tensors>> audited_;
  std::optional<int64_t> equal_at_;
};

}  // namespace firkin
