// Checks that parameters and optimiser states are equal on all ranks, by comparing checksums every
// so many steps.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {

struct StepSetup;     // step_setup.h
class StepAgreement;  // agreement.h

// A multiplicative hash, as fast as memory.
uint64_t hash_of(std::string_view bytes);

// The hash of each tensor's bytes; 0 for an undefined or empty tensor. A device hashes its own tensors, with other
// results than the CPU; this waits for it once.
std::vector<uint64_t> checksums_of(const std::vector<NamedTensor>& tensors);

// A few of the tensor's bytes, to see whether something has written to it: LibTorch's optimisers write through data(),
// which leaves the version alone. On a device only the version, since reading bytes would block. About 20 ns.
using Trace = std::array<uint64_t, 4>;
Trace trace_of(const at::Tensor& tensor);

// For each tensor that differs between ranks, the first rank whose checksum is not rank 0's; none for the others.
// Collective.
std::vector<std::optional<int>> differing_ranks(const ProcessGroup& group, const std::vector<NamedTensor>& tensors);

// Compares parameters, buffers and other tensors between ranks: every so many steps, and when a rank suspects that it
// differs from the others. What is compared is what a step's first gradient finds. Not thread-safe.
//
// Note 1, on suspicion. If a parameter changes while it holds a gradient of this rank alone, the optimiser may have
// stepped on that gradient. The program may also have moved the parameter for one backward and have restored it
// (sharpness-aware minimisation). So a suspicion fails no step: all ranks compare in a later one, and only a difference
// fails that.
//
// Note 2, on comparing again. A program may add noise of each rank's own for every backward. Its ranks differ at the
// first gradient, and are equal when the optimiser has stepped. If they were, the difference fails no step, and they
// compare again later.
class Audit {
 public:
  using Tensors = std::function<std::vector<NamedTensor>()>;

  // setup: must outlive this.
  explicit Audit(const StepSetup& setup) : setup_(setup) {}

  // owner: for remove().
  void add(const void* owner, Tensors tensors) { other_tensors_.emplace_back(owner, std::move(tensors)); }
  void remove(const void* owner) {
    std::erase_if(other_tensors_, [owner](const auto& each) { return each.first == owner; });
  }
  // Follows a change of the setup's or the module's parameters. Between steps.
  void renew();

  bool is_due(int64_t step) const;  // the same on every rank

  // Call it for each gradient of this rank alone: keeps a trace of the parameter, which should not change now.
  void record_trace(size_t parameter);
  // Call it when a synchronised step begins. Forgets the traces. Returns whether this rank suspects a difference.
  bool begin_step();
  // In a step that compares: call it for the first gradient, or when it is clear that there will be none.
  void take_checksum() { checksum_ = checksum_of_all(); }
  // Before a step that compares: call it when the optimiser has stepped.
  void take_checksum_after_optimizer() { stepped_checksum_ = checksum_of_all(); }
  // What take_checksum() found; 0 in a step that does not compare.
  uint64_t checksum() const { return checksum_.value_or(0); }
  // At the end of a step in which no rank has failed: what differs between ranks, in the same text on every rank; empty
  // if nothing does. Collective.
  std::string difference(const StepAgreement& agreement, int64_t step);
  // At the end of every step, failed or not: plans a comparison if a rank suspects a difference.
  void plan_comparison(const StepAgreement& agreement, int64_t step);
  // After that: forgets the step's checksums and watched parameters.
  void end_step();
  // Before a step that compares: keeps the buffers' checksums, because forwards write into buffers before the comparison.
  // untouched: buffers that are as a broadcast has left them on this rank; the others are undefined.
  void record_buffers(const std::vector<NamedTensor>& untouched);

  // Between steps: what differs between ranks now. Collective.
  std::string compare(int64_t step, const std::vector<NamedTensor>& untouched_buffers);

  // What this rank suspects, as part of a sentence; empty if nothing. ranks: "differ".
  std::string suspicion(const char* ranks) const;

 private:
  std::vector<NamedTensor> tensors() const;
  uint64_t checksum_of_all() const;
  std::string explain(int64_t step) const;
  bool were_equal_when_stepped() const;
  void forget_buffers_that_moved();

  const StepSetup& setup_;
  std::vector<NamedTensor> parameters_;  // the module's, including frozen ones
  std::vector<NamedTensor> buffers_;     // checksums of the untouched buffers, as tensors
  std::vector<std::pair<const void*, Tensors>> other_tensors_;
  std::optional<int64_t> equal_at_;  // the last step before which all ranks were

  std::map<size_t, Trace> local_traces_;      // the parameters that have a gradient of this rank alone
  std::optional<uint64_t> checksum_;          // at the first gradient
  std::optional<uint64_t> stepped_checksum_;  // when the optimiser had stepped
  std::string suspicion_;                     // this rank's last one
  // A rank that suspects a difference, until the next comparison. It and compare_at_ are the same on every rank. A
  // program whose suspicions have all been unfounded is compared less and less often.
  std::optional<int> suspect_;
  int64_t compare_at_ = 0;  // the step that compares
  int64_t patience_ = 1;    // in steps
};

}  // namespace firkin
