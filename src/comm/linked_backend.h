// Collectives over a modelled link.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backends.h"
#include "device_time.h"
#include "firkin/comm/modelled_link.h"
#include "firkin/comm/process_group.h"

namespace firkin {

inline int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// One collective on a modelled link. Its fields belong to the queue that it is in.
struct LinkTransfer {
  LinkTime time;
  // Called once, and must not throw; nullptr: the data are there and the link would have carried them.
  std::function<void(std::exception_ptr)> complete;
  using Moment = std::optional<std::chrono::steady_clock::time_point>;
  Moment all_arrived_at = std::nullopt;  // when the last rank came
  Moment data_ready_at = std::nullopt;
};

// A link's transfers, first in, first out. Thread-safe. A timer thread sleeps until the next completion and calls
// `complete`; for a failure, the thread that reports it does.
class LinkQueue {
 public:
  using Clock = std::chrono::steady_clock;

  LinkQueue();
  // Waits for the transfers in the queue, unless the last owner is a `complete` on the timer thread itself. All of
  // their data must still arrive or fail.
  ~LinkQueue();
  LinkQueue(const LinkQueue&) = delete;
  LinkQueue& operator=(const LinkQueue&) = delete;

  // Puts a transfer behind those before it. From then on the functions below may be called; after fail() they do
  // nothing.
  void add(const std::shared_ptr<LinkTransfer>& transfer);
  // moment: one of a transfer's, which is now.
  void note(LinkTransfer::Moment& moment);
  // Completes at once, wherever in the queue.
  void fail(const std::shared_ptr<LinkTransfer>& transfer, const std::exception_ptr& error);

 private:
  struct Line;
  std::shared_ptr<Line> line_;  // shared with the timer
  std::thread timer_;
};

// A backend whose all-reduces, broadcasts, all-to-alls and all-gathers take the time of a modelled link, while `inner`
// moves the data. Barriers, send and recv of `inner` take no link time; other collectives are refused. Errors of
// `inner` come through at once.
//
// Nothing says when the last rank has joined a collective. So each is accompanied by a one-element all-reduce of
// `inner`, which is over when all ranks have come. The link's time counts from there: counted from this rank's own
// start it would be too short when another rank is late, and counted from the end of the data's own move it would be
// too long by that.
c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link);

// The same for tensors on a device, for one rank, which stands for one of link.world: nothing is sent, sums are what
// the rank has, and each collective is a wait on a stream of this backend, which begins behind the current one. wait()
// on a work makes the current stream wait. The last rank to join is the only one. A wait takes one thread of a
// multiprocessor, and no memory traffic. Thread-safe.
c10::intrusive_ptr<c10d::Backend> make_linked_device(const ModelledLink& link, c10::Device device, std::unique_ptr<DeviceTimer> timer);

}  // namespace firkin
