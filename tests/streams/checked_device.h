// A device that is the CPU in disguise, with as many streams as one likes, for tests of what must be in order on a GPU: c10's device
// PrivateUse1, under the name "checked". Its operations run on the CPU at once, and tell the clocks (clocks.h) what they read and write.
#pragma once

#include <ATen/core/Tensor.h>

#include "../ddp/side_streams.h"
#include "clocks.h"
#include "comm/backends.h"
#include "comm/device_time.h"
#include "firkin/comm/process_group.h"

namespace firkin::streams {

inline constexpr c10::DeviceIndex kCheckedDevices = 4;  // a rank has one of its own

// To be called before a test's first tensor on such a device: what the clocks know of earlier tests is forgotten.
void register_checked_device();

inline c10::Device checked_device(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

inline StreamKey key_of(const c10::Stream& stream) {
  return stream.device_index() * 0x1000 + static_cast<StreamKey>(stream.id());
}

// How many events that keep time were recorded so far.
int64_t timing_events();

// An operation on the tensor's device, on the current stream or on this one.
void begin_operation(c10::Device device, const std::string& name);
void touch(const at::Tensor& tensor, bool writes, bool lasts = true);

// The same memory as a tensor of the CPU.
at::Tensor alias_on_cpu(const at::Tensor& tensor);

// ---- Collectives on the device, as NCCL orders them: on a stream of their own, behind what the current one has queued, and wait() makes
// the current stream wait. The data go over Gloo.

// A group with Gloo for the CPU, and for the checked device what is described above. Without `device`, each rank has one of its own.
ProcessGroup with_checked_device(const ProcessGroup& group, c10::Device device);
ProcessGroup with_checked_device(const ProcessGroup& group);

// Moments in memory of the device, so that a wait that no event orders behind what it counts from is a race. Makes streams wait, and no
// CPU.
class CheckedTimer final : public DeviceTimer {
 public:
  explicit CheckedTimer(c10::Device device);
  Moment stamp() override;
  Moment wait(After first, std::optional<After> second) override;
  // Nanoseconds of the host's clock; and how many moments there have been.
  int64_t ns(Moment moment) const { return moments_.const_data_ptr<int64_t>()[moment]; }
  int64_t count() const { return next_; }

 private:
  int64_t read(After after) const;
  Moment write(int64_t value);

  c10::Device device_;
  at::Tensor moments_;
  Moment next_ = 0;
};

// A group of one rank that stands for link.world: Gloo for the CPU, and for the checked device the modelled link.
ProcessGroup with_linked_device(const ProcessGroup& group, c10::Device device, const ModelledLink& link,
                                std::unique_ptr<DeviceTimer> timer);

}  // namespace firkin::streams
