// How ranks find each other in a store, so that no group reads what another group, or an earlier start of its ranks,
// has left there.
//
// Note [Numbered groups]
// A store may outlive ranks. The agents of torchrun 2.13 keep theirs over restarts, and TORCHELASTIC_RESTART_COUNT does
// not distinguish one start from the next, because each node's agent counts its own. So rank 0 numbers the groups, in
// the store. Each group has a part of the store, in which the other ranks arrive. Ranks that arrive there were alive
// when rank 0 opened the group.
//
// Keys, below the store's own prefix; G is the number of a group:
//   firkin/groups           how many rank 0 has opened
//   firkin/G/size           rank 0's number of ranks
//   firkin/G/arrival/R      which process is rank R, and its GPU; the last to arrive is rank R
//   firkin/G/complete       all have arrived; the value says why they cannot use NCCL
//   firkin/G/contradiction  why some process can form no group with the others: another number of ranks, for example
//   firkin/G/...            the group's own keys
#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <string>

#include "bounded_store.h"

namespace firkin {

inline constexpr const char* kContradiction = "contradiction";

// Says on standard error which ranks this one waits for at the meeting point, first after a while, then every minute.
// Not thread-safe.
class WaitReport {
 public:
  // who: "rank 1 of 4 at 127.0.0.1:29500".
  WaitReport(std::string who, std::chrono::milliseconds after);
  // Call it repeatedly during the wait. for_whom: names the ranks, "rank 0"; called only if a line is due.
  void report_if_due(c10::function_ref<std::string()> for_whom);

 private:
  std::string who_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point due_;
};

struct Arrival {
  int rank = 0;
  int size = 1;
  std::string gpu = {};                          // gpu_identity() of this rank's GPU for NCCL; empty: none
  std::string gpu_name = {};                     // for messages: "cuda:0"
  std::shared_ptr<WaitReport> report = nullptr;  // null: long waits are not reported
};

struct Gathering {
  bool complete = false;                            // all ranks are there
  c10::intrusive_ptr<c10d::Store> store = nullptr;  // the group's part; null: this rank has arrived in no group
  std::string why_not_nccl = {};                    // the same on all ranks; empty if every rank has a GPU of its own
  bool is_left_out = false;                         // the others have formed a group without this process
};

// Waits for a group in which all ranks have arrived, until `until` or until another rank gives up. Polls the store
// instead of calling its wait(), for which LibTorch 2.13 prints a warning whenever it ends without the key. Ranks form
// their groups in the same order. Throws c10::Error.
Gathering gather_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Arrival& arrival, Clock::time_point until);

}  // namespace firkin
