// Collectives on the checked device, as NCCL orders them: on a stream of their own, behind what the current one has queued, and wait()
// makes the current stream wait. The data go over Gloo.
#pragma once

#include <memory>
#include <optional>

#include "comm/backends.h"
#include "comm/device_time.h"
#include "firkin/comm/process_group.h"

namespace firkin::streams {

// A group with Gloo for the CPU, and for the checked device what is described above. Without `device`, each rank has one of its own.
ProcessGroup with_checked_device(const ProcessGroup& group, c10::Device device);
ProcessGroup with_checked_device(const ProcessGroup& group);

// Moments in memory of the device, so that a wait that no event orders behind what it counts from is a race. Makes streams wait, and no
// CPU.
class CheckedTimer final : public DeviceTimer {
 public:
  explicit CheckedTimer(c10::Device device);
  Moment note() override;
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
