// Where the ranks of a chaos sequence meet after every step and compare what they have, in the memory that they share.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "chaos_plan.h"
#include "firkin/ddp/data_parallel.h"

#include <ATen/core/Tensor.h>

namespace firkin {

// What a rank has after a step. Tensors are copies. Gradients: one per trainable parameter, undefined where it has none.
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
  std::vector<at::Tensor> parameters;         // and averages of them
  std::vector<at::Tensor> buffers;            // empty: they may differ
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> before;  // the gradients that the step began with
  std::vector<at::Tensor> alone;   // what this rank's batches give without the others; empty: it had none
  bool knows_mean = false;         // so that the step's gradient is before + the mean of `alone`
  double tolerance = 0;            // of that, relative
};

// Ends a rank's thread: the sequence has failed already.
class ChaosStop : public std::exception {};

// Thread-safe. No wait is longer than the limit, whatever the other ranks do.
class ChaosMeeting {
 public:
  ChaosMeeting(int ranks, std::chrono::milliseconds limit);

  // Waits for all ranks' reports and compares them. Throws ChaosStop on every rank once something is wrong.
  void meet(int rank, ChaosReport report);

  // Something is wrong: the ranks that wait are released.
  void fail(const std::string& what);

  // The rank's thread ends.
  void leave();

  // Waits until every rank has left; false when some rank hangs.
  bool wait_until_all_left();

  std::string failures() const;

 private:
  void fail_locked(const std::string& what);

  const int ranks_;
  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<ChaosReport>> reports_;
  int present_ = 0;
  int64_t meetings_ = 0;
  int left_ = 0;
  std::string failures_;
  std::chrono::steady_clock::time_point last_sign_of_life_;
};

}  // namespace firkin
