// What a rank of a chaos sequence has after a step, and whether the ranks agree.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chaos_plan.h"
#include "firkin/ddp/data_parallel.h"

#include <ATen/core/Tensor.h>

namespace firkin {

// Tensors are copies. Gradients: one per trainable parameter, undefined where it has none.
struct ChaosReport {
  std::string where;  // the same on every rank
  ChaosOutcome expected = ChaosOutcome::kSucceeds;
  std::vector<int> culprits;
  std::vector<std::string> reasons;  // per rank: part of what it says when it is the one that failed
  bool after_join = false;           // every gradient is none, and the last failure may be anything
  bool after_group = false;          // the group is lost: nobody has stepped on what belongs to another module
  std::string error;                 // empty: this rank's step was fine
  std::optional<StepFailure> last_failure;
  std::optional<StepFailure> failure_before;  // last_failure() when the step began
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> average;  // of parameters
  std::vector<at::Tensor> buffers;  // empty: they may differ
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> before;  // the gradients that the step began with
  std::vector<at::Tensor> alone;   // what this rank's batches give without the others; empty: it had none
  bool knows_mean = false;         // so that the step's gradient is before + the mean of `alone`
  double tolerance = 0;            // of that, relative
};

// The first thing that is wrong. One report per rank.
std::optional<std::string> find_disagreement(std::span<const std::optional<ChaosReport>> reports);

}  // namespace firkin
