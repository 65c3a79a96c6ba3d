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

// A hash of each tensor's bytes; 0 for an undefined or empty tensor. A device hashes its own tensors, by another
// function than the CPU; the call waits for each device once.
std::vector<uint64_t> checksums_of(const std::vector<NamedTensor>& tensors);

// A few of a tensor's bytes, by which to see whether something has written to it. The tensor's version would not show a
// write through data(), as LibTorch 2.13's optimisers make it. On a device a trace has only the version, because to
// read bytes is to wait for the device. About 20 ns.
using Trace = std::array<uint64_t, 4>;
Trace trace_of(const at::Tensor& tensor);

// For each tensor that differs between ranks, the first rank whose checksum is not rank 0's; none for the others.
// Collective.
std::vector<std::optional<int>> differing_ranks(const ProcessGroup& group, const std::vector<NamedTensor>& tensors);

// Compares parameters, buffers and other tensors between ranks: every so many steps, and when a rank suspects that it
// differs from the others. A step compares what its first gradient finds. Not thread-safe.
//
// Note [Suspicion]
// If a parameter changes while it has a gradient of this rank alone, the optimiser may have stepped on that gradient,
// and the ranks differ from then on. But the program may also have moved the parameter for one backward and have
// restored it, as sharpness-aware minimisation does. So a suspicion fails no step. It makes all ranks compare in a
// later one, and only a difference fails that.
//
// Note [Comparing again]
// A program may add noise of each rank's own to the parameters for every backward. Its ranks differ at the first
// gradient, although they were equal when the optimiser had stepped. So there is a second checksum, from then. If all
// ranks have the same one, the difference fails no step, and the ranks compare again later.
class Audit {
 public:
  using Tensors = std::function<std::vector<NamedTensor>()>;

  // setup: must outlive this.
  explicit Audit(const StepSetup& setup) : setup_(setup) {}

  // Compares these tensors too. owner: for remove().
  void add(const void* owner, Tensors tensors) { other_tensors_.emplace_back(owner, std::move(tensors)); }
  void remove(const void* owner) {
    std::erase_if(other_tensors_, [owner](const auto& each) { return each.first == owner; });
  }
  // Follows a change of the setup's or the module's parameters. Between steps.
  void renew();

  bool is_due(int64_t step) const;  // the same on every rank

  // Call it for each gradient of this rank alone: records a trace of the parameter, which should not change now. See
  // Note [Suspicion].
  void record_trace(size_t parameter);
  // Call it when a synchronised step begins. Forgets the traces. Returns whether this rank suspects a difference.
  bool begin_step();
  // In a step that compares: call it for the first gradient, or when it is clear that there will be none.
  void take_checksum() { checksum_ = checksum_of_all(); }
  // Before a step that compares: call it when the optimiser has stepped. See Note [Comparing again].
  void take_checksum_after_optimizer() { stepped_checksum_ = checksum_of_all(); }
  // What take_checksum() found; 0 in a step that does not compare.
  uint64_t checksum() const { return checksum_.value_or(0); }
  // At the end of a step in which no rank has failed: what differs between ranks and fails the step, in the same text
  // on every rank; empty if nothing does. Collective.
  std::string difference(const StepAgreement& agreement, int64_t step);
  // At the end of every step, failed or not: plans a comparison if a rank suspects a difference.
  void plan_comparison(const StepAgreement& agreement, int64_t step);
  // After that: forgets the step's checksums and traces.
  void end_step();
  // Before a step that compares: records the buffers' checksums now, because the forward writes into buffers.
  // untouched: the buffers, undefined where something has written to one since its broadcast.
  void record_buffers(const std::vector<NamedTensor>& untouched);

  // Between steps: what differs between ranks now. Collective.
  std::string compare(int64_t step, const std::vector<NamedTensor>& untouched_buffers);

  // What this rank suspects, in words; empty if nothing. ranks: the verb after "and ranks", such as "differ".
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
  std::optional<int64_t> equal_at_;  // the last step before which all ranks were equal

  std::map<size_t, Trace> local_traces_;      // the parameters that have a gradient of this rank alone
  std::optional<uint64_t> checksum_;          // at the first gradient
  std::optional<uint64_t> stepped_checksum_;  // when the optimiser had stepped
  std::string suspicion_;                     // this rank's last one
  // A rank that suspects a difference, until the next comparison. This and the next two are the same on every rank. The
  // more suspicions have been unfounded, the longer the ranks wait before they compare.
  std::optional<int> suspect_;
  int64_t compare_at_ = 0;  // the step that compares
  int64_t patience_ = 1;    // in steps
};

}  // namespace firkin
