// The c10d backends that carry gradients, and how a rank chooses one. Each backend's headers stay
// inside one source file.
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

// Gloo, the backend for CPU tensors. Its headers stay inside gloo_backend.cpp: the wheel does not ship them.

// address: of the meeting point; a loopback address keeps the ranks' connections on loopback as well. Otherwise Gloo
// uses the interface that GLOO_SOCKET_IFNAME names, or the one of this machine's host name.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout);

// NCCL, the backend for tensors on GPUs. Its headers and CUDA's stay inside nccl_backend.cpp and cuda_timer.cpp, which
// are compiled where LibTorch is a CUDA build; elsewhere no_nccl_backend.cpp stands in for both. It has is_capturing()
// as well (device.h).

// "2.29.7"; empty without NCCL.
std::string nccl_version();

// Tells this GPU from every other one, also of other machines: its UUID, and NCCL_HOSTID if that is set, by which NCCL
// itself tells machines apart. Throws RuntimeError without NCCL.
std::string gpu_identity(c10::Device device);

// Communicators are made by the first collective. Throws InputError without NCCL, c10::Error without a GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout);

// ---- Modelled links (linked_backend.cpp).

// A backend whose all-reduces, broadcasts, all-to-alls and all-gathers take the time of a modelled link, while `inner`
// moves the data. Barriers, send and recv of `inner` take no link time; other collectives are refused. Errors of
// `inner` come through at once. The destructor waits for what is in flight, unless it runs in its completion.
//
// A one-element all-reduce of `inner` accompanies each collective, to show when the last rank has joined. The link's
// time counts from that moment: counted from this rank's own start it would end too early if another rank is late, and
// counted from when the data have moved, too late.
c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link);

// The same for tensors on a device, for one rank that stands for one of link.world: nothing is sent, sums are what the
// rank has, and each collective is a wait on a stream of this backend, behind the current one. wait() makes the current
// stream wait. A wait takes one thread of a multiprocessor or, by its timer, link.sms whole ones. It moves nothing
// through the GPU's memory: how much NCCL does depends on its algorithm, and has not been measured. Thread-safe.
c10::intrusive_ptr<c10d::Backend> make_linked_device(const ModelledLink& link, c10::Device device, std::unique_ptr<DeviceTimer> timer);

// ---- The backend for a rank's device, as far as one rank can choose it.

// Tensors on the CPU go over Gloo in any case.
enum class DeviceBackend {
  kBest,  // NCCL if every rank has it and a GPU of its own; otherwise Gloo
  kGloo,
  kNccl,
};

// What options.backend means for a rank on this device: never kBest if NCCL is not available. Throws InputError for an
// unknown backend, and for nccl without NCCL, without a GPU or with a modelled link.
DeviceBackend choose_backend(const GroupOptions& options, c10::Device device);

// Throws InputError for a modelled link for fewer ranks than the group has, for one that holds multiprocessors of a
// CPU, and for several ranks on devices, because none of them can tell when the last one joins a collective.
void check_link(const std::optional<ModelledLink>& link, int size, c10::Device device);

inline constexpr const char* kGlooAndNccl = "cpu:gloo,cuda:nccl";  // GroupOptions::backend in full

// ---- Collectives that Firkin completes itself instead of a backend of c10d.

// complete() ends it. The base class keeps the trace: from the launch until complete().
class OwnWork final : public c10d::Work {
 public:
  OwnWork(int rank, c10d::OpType type, const char* name, const std::vector<at::Tensor>& tensors)
      : c10d::Work(rank, type, name, tensors),
        tensors_(tensors),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return tensors_; }

  // Call it once. Completes in Gloo's order: a thread that has waited for the work finds the future complete. A
  // callback of the future that throws does so on a thread where nobody would catch it, so that becomes the work's
  // error.
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

// Makes this process the rank that its launcher says: it computes with so many threads, LibTorch logs as run_ranks()
// promises, and it meets the others. asked: --ranks. Throws InputError if that contradicts the launcher.
ProcessGroup begin_rank(const RankInfo& info, std::optional<int> asked, int threads, const GroupOptions& options);

}  // namespace firkin
