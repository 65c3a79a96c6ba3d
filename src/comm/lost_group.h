// A c10d group whose destruction does not wait for collectives that will never complete.
#pragma once

#include <memory>
#include <thread>
#include <utility>

#include "group_state.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace firkin {

// Gloo's destructor waits for the collectives under way, which in a lost group end with their timeout only. A lost group leaves its backend
// to a thread of its own.
class LosableGroup final : public c10d::ProcessGroup {
 public:
  LosableGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::shared_ptr<const GroupState> state)
      : c10d::ProcessGroup(store, rank, size), state_(std::move(state)) {}
  ~LosableGroup() override {
    shut_nccl_down();
    leave_backend();
  }

  // Of companion(): made once, and kept as long as this group.
  c10::intrusive_ptr<c10d::ProcessGroup> companion;
  bool owns_nccl = false;  // and not another group, which was adopted

  void release_resources() override {
    shut_nccl_down();
    leave_backend();
    c10d::ProcessGroup::release_resources();
  }

 private:
  // NCCL's own threads want to be told that the group ends, and not only that it is gone.
  void shut_nccl_down() {
    if (!owns_nccl || state_->lost()) return;
    try {
      getBackend(c10::kCUDA)->shutdown();
    } catch (const std::exception&) {  // the communicators are beyond help
    }
  }

  void leave_backend() {
    if (!state_->lost()) return;
    try {
      std::thread([by_device = std::move(deviceTypeToBackend_), by_type = std::move(backendTypeToBackend_), ends_nccl = owns_nccl] {
        try {
          if (ends_nccl) by_device.at(c10::kCUDA)->abort();
        } catch (const std::exception&) {
        }
      }).detach();
    } catch (const std::exception&) {
      // No thread to be had: the destructor waits here.
    }
  }

  std::shared_ptr<const GroupState> state_;
};

}  // namespace firkin
