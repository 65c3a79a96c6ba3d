// A c10d group that can be left behind, the further sets of connections that are kept with it, and start_or() over one
// of them.
#pragma once

#include <atomic>
#include <chrono>
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
// Dissemination (Hensgen, Finkel, Manber 1988): in round k every rank sends all that it has to rank + 2^k and takes in
// what comes from rank - 2^k. An OR may take in a rank twice, so this works for any number of ranks. Each rank sends
// ceil(log2 W) messages of all bytes, one after another; Gloo's all-reduce is a ring of 2(W-1) messages of bytes / W.
//
// Runs on a thread of its own, which the first call starts: a wait with a short timeout would close Gloo's connections,
// so some thread has to wait for long. One thread at a time may use this.
class OrRounds {
 public:
  OrRounds(c10::intrusive_ptr<c10d::Backend> backend, std::optional<ModelledLink> link);
  // Never waits for another rank: what is in flight fails.
  ~OrRounds();
  OrRounds(const OrRounds&) = delete;
  OrRounds& operator=(const OrRounds&) = delete;

  Work start(at::Tensor bytes, std::chrono::milliseconds timeout);
  // Lets the thread end by itself, and does not wait for it.
  void leave();

 private:
  class Rounds;
  std::shared_ptr<Rounds> rounds_;
  std::thread thread_;
};

// Gloo's destructor waits for the collectives in flight, which in a lost group only end with their timeout. So a group
// that is lost, or was left, hands its backends to another thread to destroy.
class LosableGroup final : public c10d::ProcessGroup {
 public:
  LosableGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::shared_ptr<const GroupState> state);
  ~LosableGroup() override;

  void release_resources() override;

  // `gloo` carries tensors on the CPU, and on the devices whose tensors go over Gloo in `other`. Other devices take the
  // backend of `other`, unless this group has one for them already.
  void set_backends(const c10::intrusive_ptr<c10d::Backend>& gloo, c10d::ProcessGroup& other);
  // From now on the destructor waits for nothing, whether or not the group is lost.
  void leave() { left_ = true; }

  // Created by the first call.
  OrRounds& or_rounds();

  bool owns_nccl = false;                                // whether its NCCL backend is not another group's
  std::vector<std::shared_ptr<ConnectionPlace>> places;  // for take_connections()

 private:
  void shut_nccl_down();
  void leave_backends();

  std::shared_ptr<const GroupState> state_;
  std::atomic<bool> left_ = false;
  std::unique_ptr<OrRounds> or_rounds_;
};

// The place of a set for take_connections(). It exists before its set is connected, so that all ranks count alike if
// connecting fails on some of them. A place that is not free is lent, or was abandoned.
struct ConnectionPlace {
  c10::intrusive_ptr<LosableGroup> set;
  std::atomic<bool> is_free = false;
};

// The same ranks over connections of their own, in a part of the group's store. Collective. Throws RuntimeError as
// connect() does.
c10::intrusive_ptr<LosableGroup> connect_again(const ProcessGroup& group, const std::string& part);

}  // namespace firkin
