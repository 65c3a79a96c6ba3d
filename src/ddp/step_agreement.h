// What all ranks must know of a step before any of them may step its optimiser: one small vector, summed over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

enum class RankState : int64_t { kWithoutData, kWithData, kFailed };

// Once a step: launch() with the last bucket, wait(), then the questions. Not thread-safe.
//
// The vector has a slot per rank (its step and state; every rank writes its own) and, where unused parameters are allowed, one per
// parameter (how many ranks used it): 8 (world size + parameters) bytes, always on the CPU.
class StepAgreement {
 public:
  // parameters: 0 when all parameters are used anyway.
  StepAgreement(ProcessGroup group, size_t parameters);

  // Collective. used: per parameter; not read when `parameters` is 0.
  void launch(int64_t step, RankState state, const std::vector<bool>& used);

  // Throws RuntimeError when the collective failed, or the ranks are in different steps, naming two that differ: the group is lost then.
  void wait(c10::function_ref<std::string()> what);

  bool has_data(int rank) const { return state_of(rank) == RankState::kWithData; }
  int ranks_with_data() const;
  int first_with_data() const;  // world size when there is none
  int first_failed() const;     // world size when there is none
  bool is_used(size_t parameter) const;

  // The reason that `root` gives, on every rank; at most 1,000 bytes of it. Collective.
  std::string exchange_reason(const std::string& ours, int root);

 private:
  int first_in(RankState state) const;
  RankState state_of(int rank) const;
  int64_t step_of(int rank) const;

  ProcessGroup group_;
  at::Tensor slots_;
  Work work_;
};

}  // namespace firkin
