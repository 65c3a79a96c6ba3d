// The c10d backends that carry gradients, and how a rank chooses one. Each backend's headers stay inside one source
// file.
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

class DeviceTimer;  // device_time.h

// Gloo, the backend for CPU tensors. Its headers stay inside gloo_backend.cpp, because PyTorch's wheels do not have
// them.

// address: the meeting point's. Connections use the interfaces that GLOO_SOCKET_IFNAME names. If it names none, they stay
// on loopback if the address is one of it, and use the interface of this machine's host name otherwise.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout);

// NCCL, the backend for tensors on GPUs. Its headers and CUDA's stay inside nccl_backend.cpp and cuda_timer.cpp, which
// are compiled where LibTorch is a CUDA build; elsewhere no_nccl_backend.cpp stands in for both. is_capturing()
// (device.h) is there as well.

// "2.29.7"; empty without NCCL.
std::string nccl_version();

// Identifies a GPU among those of all machines: its UUID and, if that is set, NCCL_HOSTID, by which NCCL distinguishes
// machines. Throws RuntimeError without NCCL.
std::string gpu_identity(c10::Device device);

// The first collective makes the communicator. Throws InputError without NCCL, c10::Error without a GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout);

// ---- Modelled links (linked_backend.cpp).

// A backend whose all-reduces, broadcasts, all-to-alls and all-gathers take the time of a modelled link, while `inner`
// moves the data. Barriers, send and recv of `inner` take no link time; other collectives are refused. An error of
// `inner` ends the collective at once. The destructor waits for what is in flight, unless a completion runs it.
//
// Note [When the last rank joins]
// The link's time counts from the moment at which the last rank has joined a collective. From this rank's own start it
// would end too early if another rank is late, and from the moment at which the data have moved, too late. So an
// all-reduce of one element, by `inner`, accompanies each collective: it is complete soon after the last rank has
// joined.
c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link);

// The same for tensors on a device, for one rank that stands for one of link.world. Nothing is sent, and sums are what
// the rank has. Each collective is a wait on a stream of this backend, behind the current one; wait() makes the current
// stream wait for it. The wait takes one thread of a multiprocessor or, by its timer, link.sms whole ones. Nothing
// moves through the GPU's memory: how much NCCL moves there depends on its algorithm, and has not been measured.
// Thread-safe.
c10::intrusive_ptr<c10d::Backend> make_linked_device(const ModelledLink& link, c10::Device device, std::unique_ptr<DeviceTimer> timer);

// ---- The backend for a rank's device, as far as one rank can choose it. Tensors on the CPU always go over Gloo.

enum class DeviceBackend {
  kBest,  // NCCL if every rank has it and a GPU of its own; otherwise Gloo
  kGloo,
  kNccl,
};

// What options.backend means for a rank on this device. Never kBest if NCCL is not available. Throws InputError for an
// unknown backend, and for nccl without NCCL, without a GPU or with a modelled link.
DeviceBackend choose_backend(const GroupOptions& options, c10::Device device);

// Throws InputError for a modelled link for fewer ranks than the group has, for one that holds multiprocessors of a
// CPU, and for one between several ranks on devices, of which none can find out when the last one joins a collective.
void check_link(const std::optional<ModelledLink>& link, int size, c10::Device device);

inline constexpr const char* kGlooAndNccl = "cpu:gloo,cuda:nccl";  // GroupOptions::backend in full

// ---- Collectives that Firkin completes itself instead of a backend of c10d.

// A collective that ends when complete() is called. In a trace it is shown from its construction until then.
class OwnWork final : public c10d::Work {
 public:
  OwnWork(int rank, c10d::OpType type, const char* name, const std::vector<at::Tensor>& tensors)
      : c10d::Work(rank, type, name, tensors),
        tensors_(tensors),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return tensors_; }

  // Call it once. As with Gloo, a thread that has waited for the work finds the future complete. If a callback of the
  // future throws, nobody would catch that on this thread, so it becomes the work's error.
  void complete(std::exception_ptr error) noexcept {
    try {
      if (error) {
        future_->setError(error);
      } else {
        future_->markCompleted(c10::IValue(tensors_));
      }
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    finish(error);
  }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// ---- Ranks that Firkin runs.

// Makes this process the rank that its launcher says: sets the number of threads to compute with, makes LibTorch log as
// run_ranks() promises, and meets the other ranks. asked: --ranks. Throws InputError if that contradicts the launcher.
ProcessGroup begin_rank(const RankInfo& info, std::optional<int> asked, int threads, const GroupOptions& options);

}  // namespace firkin
