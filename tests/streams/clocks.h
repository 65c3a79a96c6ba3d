// Vector clocks for streams: which work on a device is in order, whatever order it happened to run in.
//
// Every operation on the checked device (checked_device.h) runs at once, on the CPU; here is kept what a device would have been free to do.
// An operation gets a time of its stream, an event carries what its stream knew when it was recorded, a stream that waits for an event
// knows that too. Two operations that touch the same bytes, one of them writing, must be in order by what the later one's stream knows; if
// they are not, it is a race, and found in every run and not only in unlucky ones.
//
// Streams keep time, too: only a timer's waits (checked_backend.h) take any, and a stream that waits for an event goes on no earlier than
// that. So a device may be far behind the CPU that queues its work, in no time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

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

}  // namespace firkin::streams
