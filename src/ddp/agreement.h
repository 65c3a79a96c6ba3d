// How ranks agree: at construction on options and parameters; in every step, before any optimiser steps, that no rank
// has failed.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"

namespace firkin {

// One line for each thing that ranks must agree on: options (all but the timeout and the log), then
// every parameter and buffer of the module.
std::vector<std::string> describe(const DataParallelOptions& options, const torch::nn::Module& module);
// "parameter blocks.0.w1 [64, 64] Float strides [64, 1] on cpu"
std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor);

// Empty if all ranks have the same lines. Otherwise the first line that differs from rank 0's, in both versions; the
// same text on every rank. Collective.
std::string difference_between_ranks(const ProcessGroup& group, const std::vector<std::string>& lines);

// problem: why this rank cannot go on. It throws this as InputError; every other rank throws a
// RuntimeError that names it. Collective.
void agree_to_begin(const ProcessGroup& group, const std::optional<std::string>& problem);

enum class RankState : uint64_t { kWithoutData, kWithData, kFailed };

// What a rank reports in a step, in the form in which it travels.
struct RankReport {
  RankState state : 2 = RankState::kWithoutData;
  uint64_t parameters_changed : 1 = 0;  // its module trains other parameters than it did
  uint64_t buffers_changed : 1 = 0;     // its module has other buffers, or of other sizes, than it had
  uint64_t suspects : 1 = 0;            // it may differ from the others: Note [Suspicion] in audit.h
  uint64_t optimizer_steps : 8 = 0;     // since the step before, at most kMostOptimizerSteps: Note [Counted optimizer steps]
  uint64_t step : 51 = 0;
  uint64_t identity = 0;  // identifies what is trained; must be the same on every rank
  uint64_t checksum = 0;  // the parameters' checksum, in a step that compares them
};
static_assert(sizeof(RankReport) == 24);
constexpr uint64_t kMostOptimizerSteps = 255;

// What the ranks have reported of one step. Once a step, call launch(), then wait(), then the others. Not thread-safe.
//
// The ranks combine 24 bytes for each rank and, if parameters may be unused, one bit for each parameter, by OR, always
// on the CPU. Every rank writes its own part, in ceil(log2 W) hops.
class StepAgreement {
 public:
  // group: must outlive this; nothing else may use its connections. parameters: how many there are; 0 if all are used
  // anyway.
  StepAgreement(const ProcessGroup& group, size_t parameters);

  // Collective. used: per parameter; not read when `parameters` is 0.
  void launch(const RankReport& ours, const std::vector<bool>& used);

  // Throws RuntimeError if the collective has failed, or if ranks are in different steps, naming two such ranks. The
  // group is then to be lost.
  void wait(c10::function_ref<std::string()> what);

  bool has_data(int rank) const { return reports_[static_cast<size_t>(rank)].state == RankState::kWithData; }
  int ranks_with_data() const;
  // The first such rank; the world size if there is none.
  int first_with_data() const {
    return first_where([](const RankReport& rank) { return rank.state == RankState::kWithData; });
  }
  int first_failed() const {
    return first_where([](const RankReport& rank) { return rank.state == RankState::kFailed; });
  }
  int first_that_suspects() const {
    return first_where([](const RankReport& rank) { return rank.suspects != 0; });
  }
  bool any_parameters_changed() const {
    return any([](const RankReport& rank) { return rank.parameters_changed != 0; });
  }
  bool any_buffers_changed() const {
    return any([](const RankReport& rank) { return rank.buffers_changed != 0; });
  }
  // Whether all ranks with data have the same checksum. Others, which are in join(), may have old parameters until its
  // end.
  bool are_checksums_equal() const {
    const auto first = static_cast<size_t>(first_with_data());
    return !any(
        [this, first](const RankReport& rank) { return rank.state == RankState::kWithData && rank.checksum != reports_[first].checksum; });
  }
  // Two ranks with data whose optimisers have stepped differently often, in words; empty if there are none.
  std::string difference_of_optimizer_steps() const;
  bool is_used(size_t parameter) const;

 private:
  template <typename Holds>
  int first_where(Holds holds) const {
    return static_cast<int>(std::ranges::find_if(reports_, holds) - reports_.begin());
  }
  template <typename Holds>
  bool any(Holds holds) const {
    return std::ranges::any_of(reports_, holds);
  }

  const ProcessGroup& group_;
  size_t parameters_;
  at::Tensor bytes_;
  Work work_;
  std::vector<RankReport> reports_;  // by rank
};

}  // namespace firkin
