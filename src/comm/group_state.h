// What the handles of one group share beside its backend: the way to its store after a failure, and whether the group is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bounded_store.h"
#include "firkin/comm/process_group.h"
#include "group_options.h"

namespace firkin {

enum class StoreHost {
  kThisRank,
  kRank0,
  kElsewhere,  // a launcher, or threads of one process
};

// Thread-safe.
class GroupState {
 public:
  // address: of the meeting point.
  GroupState(c10::intrusive_ptr<c10d::Store> group_store, std::string name, StoreHost host, std::string meeting_address,
             const GroupOptions& options, DeviceBackend backend)
      : store(std::move(group_store)),
        store_name(std::move(name)),
        store_host(host),
        address(std::move(meeting_address)),
        timeout(options.timeout),
        link(options.link),
        device_backend(backend) {}

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
  const std::string address;
  const std::chrono::milliseconds timeout;  // GroupOptions::timeout
  const std::optional<ModelledLink> link;   // GroupOptions::link
  const DeviceBackend device_backend;       // never kBest

 private:
  mutable std::mutex mutex_;
  std::string loss_;
  std::atomic<bool> lost_ = false;
};

}  // namespace firkin
