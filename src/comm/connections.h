// A c10d group that can be left behind, the further sets of connections that are kept with it, and start_or() over one of them.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "group_state.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace firkin {

inline constexpr const char* kAgreementCollective = "gloo:or";  // how a trace names start_or()

// start_or() over one set of connections: the bitwise OR of every rank's bytes, in ceil(log2 W) hops.
//
// Dissemination (Hensgen, Finkel, Manber 1988): in round k every rank sends all that it has to rank + 2^k and takes in what comes from
// rank - 2^k. An OR may take in a rank twice, so any number of ranks will do. Each rank sends ceil(log2 W) messages of all bytes, one after
// another; Gloo's all-reduce is a ring of 2(W-1) messages of bytes / W.
//
// On a thread of its own, which the first call starts: waiting for a message with a short timeout would close Gloo's connections, so
// somebody has to wait for long. One thread at a time may use this.
class OrRounds {
 public:
  OrRounds(c10::intrusive_ptr<c10d::Backend> backend, std::optional<ModelledLink> link);
  // Never waits for another rank: what is under way fails.
  ~OrRounds();
  OrRounds(const OrRounds&) = delete;
  OrRounds& operator=(const OrRounds&) = delete;

  Work start(at::Tensor bytes, std::chrono::milliseconds timeout);
  // The thread ends by itself, and nobody waits for it.
  void leave();

 private:
  class Rounds;
  std::shared_ptr<Rounds> rounds_;
  std::thread thread_;
};

// The sets of take_connections(). Thread-safe. A set's place is taken before it is connected, so that the ranks count alike when connecting
// fails on some of them.
class ConnectionPool {
 public:
  using Set = c10::intrusive_ptr<c10d::ProcessGroup>;

  std::vector<bool> free_sets() const;
  int64_t add();  // the place of a set that is still to come, taken
  void connected(int64_t index, Set set);
  Set take(int64_t index);
  void give_back(int64_t index);
  void abandon(int64_t index);

 private:
  struct Place {
    Set set;
    bool is_free = false;
  };

  mutable std::mutex mutex_;
  std::vector<Place> places_;
};

// Gloo's destructor waits for the collectives under way, which in a lost group end with their timeout only. A group that is lost, or was
// left, hands its backends to a thread of its own.
class LosableGroup final : public c10d::ProcessGroup {
 public:
  LosableGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::shared_ptr<const GroupState> state);
  ~LosableGroup() override;

  void release_resources() override;

  // `gloo` carries tensors on the CPU, and those on the devices whose tensors go over Gloo in `other`; other backends are those of `other`.
  void set_backends(const c10::intrusive_ptr<c10d::Backend>& gloo, c10d::ProcessGroup& other);
  // From now on its end waits for nothing, lost or not.
  void leave() { left_ = true; }

  // Made at the first call.
  OrRounds& or_rounds();

  bool owns_nccl = false;                                          // and not another group
  std::map<int64_t, c10::intrusive_ptr<LosableGroup>> companions;  // of companion(), kept as long as this group
  const std::shared_ptr<ConnectionPool> pool = std::make_shared<ConnectionPool>();

 private:
  void shut_nccl_down();
  void leave_backends();

  std::shared_ptr<const GroupState> state_;
  std::atomic<bool> left_ = false;
  std::unique_ptr<OrRounds> or_rounds_;
};

// The same ranks over connections of their own, in a part of the group's store. Collective. Throws RuntimeError as connect() does.
c10::intrusive_ptr<LosableGroup> connect_again(const ProcessGroup& group, const std::string& part);

}  // namespace firkin
