// start_or(): the bitwise OR of every rank's bytes, in ceil(log2 W) hops.
//
// Dissemination (Hensgen, Finkel, Manber 1988): in round k every rank sends all that it has to rank + 2^k and takes in what comes from
// rank - 2^k. An OR may take in a rank twice, so any number of ranks will do. Each rank sends ceil(log2 W) messages of all bytes, one after
// another; Gloo's all-reduce is a ring of 2(W-1) messages of bytes / W.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "firkin/comm/process_group.h"

namespace firkin {

inline constexpr const char* kAgreementCollective = "gloo:or";  // how a trace names start_or()

// The rounds of one set of connections, on a thread of their own: waiting for a message with a short timeout would close Gloo's
// connections, so somebody has to wait for long. The thread starts with the first call. One thread at a time may use this.
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

}  // namespace firkin
