// Where the ranks of a chaos sequence meet after every step and compare what they have, in the memory that they share.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "chaos_plan.h"
#include "firkin/ddp/data_parallel.h"

namespace firkin {

// What a rank has after a step. Tensors are copies. Gradients: one per trainable parameter, undefined where it has none.
struct ChaosReport {
  std::string where;  // the same on every rank
  ChaosOutcome expected = ChaosOutcome::kSucceeds;
  std::vector<int> culprits;
  std::vector<std::string> reasons;  // per rank: part of what it says when it is the one that failed
  bool after_join = false;           // every gradient is none, and the last failure may be anything
  std::string error;                 // empty: this rank's step was fine
  std::optional<StepFailure> last_failure;
  std::optional<StepFailure> failure_before;  // last_failure() when the step began
  Tensors parameters;
  Tensors buffers;  // empty: they may differ
  Tensors gradients;
  Tensors before;           // the gradients that the step began with
  Tensors alone;            // what this rank's batches give without the others; empty: it had none
  bool knows_mean = false;  // so that the step's gradient is before + the mean of `alone`
  double tolerance = 0;     // of that, relative
};

// The first thing that is wrong, if any. One report per rank.
std::optional<std::string> find_disagreement(const std::vector<ChaosReport>& reports);

// Ends a rank's thread: the sequence has failed already.
class ChaosStop : public std::exception {};

// Thread-safe. No wait is longer than the limit, whatever the other ranks do.
class ChaosMeeting {
 public:
  ChaosMeeting(int ranks, std::chrono::milliseconds limit) : ranks_(ranks), limit_(limit), reports_(static_cast<size_t>(ranks)) {}

  // Waits for all ranks' reports and compares them. Throws ChaosStop on every rank once something is wrong.
  void meet(int rank, ChaosReport report) {
    std::unique_lock lock(mutex_);
    if (!failures_.empty()) throw ChaosStop();
    const std::string where = report.where;
    last_sign_of_life_ = std::chrono::steady_clock::now();
    reports_[static_cast<size_t>(rank)] = std::move(report);
    if (++present_ == ranks_) {
      if (const auto wrong = find_disagreement(reports_)) fail_locked(*wrong);
      present_ = 0;
      ++meetings_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, limit_, [this, before = meetings_] { return meetings_ > before || !failures_.empty(); })) {
      fail_locked(fmt::format("rank {} waited in vain for the others after {}; {} of {} came", rank, where, present_, ranks_));
    }
    if (!failures_.empty()) throw ChaosStop();
  }

  // Something is wrong: the ranks that wait are released.
  void fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    fail_locked(what);
  }

  // The rank's thread ends.
  void leave() {
    const std::lock_guard lock(mutex_);
    ++left_;
    last_sign_of_life_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }

  // Waits until every rank has left; false when some rank hangs.
  bool wait_until_all_left() {
    std::unique_lock lock(mutex_);
    const auto all_left = [this] { return left_ == ranks_; };
    const auto deadline = [this] { return last_sign_of_life_ + 2 * limit_; };
    while (!changed_.wait_until(lock, deadline(), all_left)) {
      if (std::chrono::steady_clock::now() < deadline()) continue;  // somebody showed up meanwhile
      fail_locked(fmt::format("{} of {} ranks hang, {} of them in a meeting", ranks_ - left_, ranks_, present_));
      return false;
    }
    return true;
  }

  std::string failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
  }

 private:
  void fail_locked(const std::string& what) {
    failures_ += (failures_.empty() ? "" : "\n    then ") + what;
    changed_.notify_all();
  }

  const int ranks_;
  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ChaosReport> reports_;
  int present_ = 0;
  int64_t meetings_ = 0;
  int left_ = 0;
  std::string failures_;
  std::chrono::steady_clock::time_point last_sign_of_life_ = std::chrono::steady_clock::now();
};

}  // namespace firkin
