// A c10d group that can be left behind, the further sets of connections that are kept with it, and start_or() over one of them.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
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

// Gloo's destructor waits for the collectives under way, which in a lost group end with their timeout only. A group that is lost, or was
// left, hands its backends to a thread of its own.
class LosableGroup final : public c10d::ProcessGroup {
 public:
  LosableGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::shared_ptr<const GroupState> state);
  ~LosableGroup() override;

  void release_resources() override;

  // `gloo` carries tensors on the CPU, and those on the devices whose tensors go over Gloo in `other`; other backends are those of `other`,
  // but for devices that this group has a backend for already.
  void set_backends(const c10::intrusive_ptr<c10d::Backend>& gloo, c10d::ProcessGroup& other);
  // From now on its end waits for nothing, lost or not.
  void leave() { left_ = true; }

  // Made at the first call.
  OrRounds& or_rounds();

  bool owns_nccl = false;                                          // and not another group
  std::map<int64_t, c10::intrusive_ptr<LosableGroup>> companions;  // of companion(), kept as long as this group
  std::vector<std::shared_ptr<ConnectionPlace>> places;            // of take_connections()

 private:
  void shut_nccl_down();
  void leave_backends();

  std::shared_ptr<const GroupState> state_;
  std::atomic<bool> left_ = false;
  std::unique_ptr<OrRounds> or_rounds_;
};

// A set of take_connections(). A place is there before its set is connected, so that the ranks count alike when connecting fails on some of
// them. One that is not free is lent, or was abandoned.
struct ConnectionPlace {
  c10::intrusive_ptr<LosableGroup> set;
  std::atomic<bool> is_free = false;
};

// The same ranks over connections of their own, in a part of the group's store. Collective. Throws RuntimeError as connect() does.
c10::intrusive_ptr<LosableGroup> connect_again(const ProcessGroup& group, const std::string& part);

}  // namespace firkin
