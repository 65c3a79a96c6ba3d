// What the handles of one group share beside its backend: the way to its store after a failure, and whether the group is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "bounded_store.h"

namespace firkin {

enum class StoreHost {
  kThisRank,
  kRank0,
  kElsewhere,  // a launcher, or threads of one process
};

// Thread-safe.
class GroupState {
 public:
  GroupState(c10::intrusive_ptr<c10d::Store> group_store, std::string name, StoreHost host, std::chrono::milliseconds limit)
      : store(std::move(group_store)), store_name(std::move(name)), store_host(host), timeout(limit) {}

  bool lost() const { return lost_; }

  // The message of the failure that lost the group.
  std::string loss() const {
    const std::lock_guard lock(mutex_);
    return loss_;
  }

  // Keeps the first message.
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (lost_) return;
    loss_ = message;
    lost_ = true;
  }

  BoundedStore store;
  const std::string store_name;  // "the store at 127.0.0.1:29500"
  const StoreHost store_host;
  const std::chrono::milliseconds timeout;  // GroupOptions::timeout

 private:
  mutable std::mutex mutex_;
  std::string loss_;
  std::atomic<bool> lost_ = false;
};

}  // namespace firkin
