// Where the ranks of a chaos sequence meet after every step and compare what they have, in the memory that they share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "chaos_report.h"

namespace firkin {

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
