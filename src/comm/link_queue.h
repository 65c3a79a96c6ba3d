// The collectives on a modelled link, first in, first out, and the thread that completes each when its time has come.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "firkin/comm/modelled_link.h"

namespace firkin {

// One collective. Its fields belong to the queue that it is in.
struct LinkTransfer {
  LinkTime time;
  // Called once, and must not throw; nullptr: the data are there and the link would have carried them.
  std::function<void(std::exception_ptr)> complete;
  std::optional<std::chrono::steady_clock::time_point> joined = std::nullopt;  // the last rank has come
  bool moved = false;                                                          // the data are there
};

// Thread-safe. A timer thread sleeps until the next completion; it calls `complete`, for a failure the thread that tells of it does.
class LinkQueue {
 public:
  using Clock = std::chrono::steady_clock;

  LinkQueue();
  // Waits for what is in the queue, unless the last owner is a `complete` on the timer thread itself. Everything there must be going to
  // move or to fail.
  ~LinkQueue();
  LinkQueue(const LinkQueue&) = delete;
  LinkQueue& operator=(const LinkQueue&) = delete;

  // Behind those before it. From then on the rest may be called, once each; after fail() nothing happens.
  void add(const std::shared_ptr<LinkTransfer>& transfer);
  void join(LinkTransfer& transfer);
  void move(LinkTransfer& transfer);
  void fail(const std::shared_ptr<LinkTransfer>& transfer, const std::exception_ptr& error);  // at once, wherever it is in the queue

 private:
  struct Line;
  std::shared_ptr<Line> line_;  // shared with the timer
  std::thread timer_;
};

}  // namespace firkin
