// Do the ranks still hold the same? Checksums of parameters and optimiser states, compared every so many steps.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
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

struct StepSetup;     // transport.h
class StepAgreement;  // agreement.h

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

// When ranks compare what they hold, and what they find: every so many steps, and where a rank suspects that it differs from the others.
//
// Parameters that change under gradients of this rank alone may have been stepped with them; or the program climbs and goes back
// (sharpness-aware minimisation). So all ranks compare in a later step, and only a difference fails that. Compared is what a step's first
// gradient finds, synchronised or not: a program that moves its parameters by itself between backwards has them alike on all ranks there.
// Not thread-safe.
class Audit {
 public:
  using Tensors = std::function<std::vector<NamedTensor>()>;

  // setup: must outlive this.
  explicit Audit(const StepSetup& setup) : setup_(setup) {}

  // owner: for remove().
  void add(const void* owner, Tensors tensors) { others_.emplace_back(owner, std::move(tensors)); }
  void remove(const void* owner) {
    std::erase_if(others_, [owner](const auto& each) { return each.first == owner; });
  }
  // The setup's parameters are others, or the module's; between steps.
  void renew();

  bool is_due(int64_t step) const;  // the same on every rank

  // In a step. A gradient that is not synchronised:
  void note_local_gradient(size_t parameter);
  // A synchronised step begins. Returns whether this rank suspects.
  bool note_begin();
  // The first gradient of a step that compares has come, or none will.
  void note_first_gradient() { checksum_ = checksum(); }
  // Of what the first gradient has found; 0 in a step that does not compare.
  uint64_t noted() const { return checksum_.value_or(0); }
  // All ranks have come to the end of the step, and none has failed: what differs between them, the same text on every rank; empty:
  // nothing. Collective.
  std::string difference(const StepAgreement& agreement, int64_t step);
  // The same, whether one has failed or not.
  void note_suspicion(const StepAgreement& agreement, int64_t step);
  void note_end();
  // Before a step that compares: these were as a broadcast has left them on this rank, the others are undefined.
  void note_buffers(const std::vector<NamedTensor>& untouched);

  // Between steps: what differs now. Collective.
  std::string compare(int64_t step, const std::vector<NamedTensor>& untouched_buffers);

  // What this rank suspects, as part of a sentence; empty: nothing. ranks: "differ".
  std::string suspicion(const char* ranks) const;

 private:
  bool is_regular(int64_t step) const;
  std::vector<NamedTensor> tensors() const;
  uint64_t checksum() const;
  std::string explain(int64_t step) const;
  void forget_buffers_that_moved();
  void note_equal(int64_t step) { equal_at_ = step; }

  const StepSetup& setup_;
  std::vector<NamedTensor> parameters_;  // of the module, frozen ones as well
  std::vector<NamedTensor> buffers_;     // numbers: checksums of what a broadcast has left
  std::vector<std::pair<const void*, Tensors>> others_;
  std::optional<int64_t> equal_at_;

  std::map<size_t, Trace> local_;  // by parameter that has a gradient of this rank alone
  std::optional<uint64_t> checksum_;
  std::string suspicion_;  // this rank's last one
  // A rank that suspects, where no comparison has followed. The same on every rank, as is when it follows: a program whose suspicions have
  // all been unfounded is compared more and more seldom.
  std::optional<int> suspect_;
  int64_t compare_at_ = 0;  // step
  int64_t patience_ = 1;    // steps
};

}  // namespace firkin
