// A device that is the CPU in disguise, with as many streams as one likes, for tests of what must be in order on a GPU: c10's device
// PrivateUse1, under the name "checked". Its operations run on the CPU at once, and tell the clocks what they read and write.
//
// The vector clocks say which work on a device is in order, whatever order it happened to run in: they keep what a device would have been
// free to do. An operation gets a time of its stream, an event carries what its stream knew when it was recorded, a stream that waits for
// an event knows that too. Two operations that touch the same bytes, one of them writing, must be in order by what the later one's stream
// knows; if they are not, it is a race, and found in every run and not only in unlucky ones.
//
// Streams keep time, too: only a timer's waits take any, and a stream that waits for an event goes on no earlier than
// that. So a device may be far behind the CPU that queues its work, in no time.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>

#include "../ddp/side_streams.h"
#include "../test.h"
#include "comm/backends.h"
#include "comm/device_time.h"
#include "firkin/comm/process_group.h"

namespace firkin::streams {

using StreamKey = int64_t;
using Clock = std::map<StreamKey, int64_t>;

class Clocks {
 public:
  // Of all tests of this process.
  static Clocks& all();

  // A new operation of the stream; touch() belongs to it until the next one of this thread.
  void begin(StreamKey stream, const std::string& operation);
  // lasts: the operation may go on when the CPU does; false: the CPU waits for its end.
  void touch(const void* first, int64_t bytes, bool writes, bool lasts = true);

  Clock now(StreamKey stream);
  void learn(StreamKey stream, const Clock& clock);

  // When a stream has done what is queued on it, in nanoseconds of the host's clock: not before now.
  int64_t done_ns(StreamKey stream);
  void not_done_before(StreamKey stream, int64_t ns);
  void forget_times();

  // The block goes back to the allocator, which may hand it out on `stream` at once, unless other streams' use was recorded.
  void freed(const void* first, int64_t bytes, StreamKey stream, bool was_recorded);

  // The CPU waited for a device.
  void host_waits(const std::string& why);

  // What was found since the last call.
  std::vector<std::string> take_races();
  std::vector<std::string> take_host_waits();

 private:
  struct Access {
    uintptr_t first = 0;
    uintptr_t end = 0;
    StreamKey stream = 0;
    int64_t time = 0;
    bool writes = false;
    std::string operation;
  };
  bool is_before(const Access& access, StreamKey stream) { return clocks_[stream][access.stream] >= access.time; }

  std::mutex mutex_;
  std::map<StreamKey, Clock> clocks_;
  std::map<StreamKey, int64_t> done_ns_;
  std::vector<Access> accesses_;
  std::vector<std::string> races_;
  std::vector<std::string> host_waits_;
};

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
