// Streams of devices: what runs on one is not in the order of what runs on another unless an event says so. On a CPU there are none, and
// nothing here does anything.
//
// Autograd runs a hook with the stream as the current one on which that gradient is ready: the forward's, which may differ from one
// parameter to the next and from the one that calls backward(). All of it is done with c10's generic streams and events.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace firkin {

// Of this thread. The device is no CPU.
c10::Stream current_stream(c10::Device device);

// The streams on which a bucket was written to since it was sent last. Not thread-safe.
class BucketWriters {
 public:
  // Something was queued on the current stream that writes to it.
  void note(c10::Device device);

  // What is queued on the current stream from now on comes after all that was noted, which is forgotten. An event for every stream but the
  // current one; none in the usual case of one stream.
  void join(c10::Device device);

 private:
  struct Writer {
    c10::Stream stream;
    c10::Event event;
    bool has_written = false;
  };
  std::vector<Writer> writers_;  // kept for the next step
};

// A point in the devices' work: what was queued on the streams that were current at set(), and on those of every set() before. A stream
// that goes on from there calls follow() first. Not thread-safe.
class StreamMark {
 public:
  // Of the devices of these tensors, each once.
  explicit StreamMark(const std::vector<at::Tensor>& tensors);

  void set();
  // What is queued on the current streams, or on the current one of this device, from now on comes after the mark. Costs one comparison for
  // the stream that set it.
  void follow();
  void follow(c10::Device device);

 private:
  struct Place {
    c10::Device device;
    std::optional<c10::Stream> stream = std::nullopt;  // that set it last; null: never set
    c10::Event event;
  };
  static void follow(const Place& place, const c10::Stream& current);

  std::vector<Place> places_;
};

}  // namespace firkin
