// Shows where the time of a running training goes: work, waiting for slower ranks, exposed communication.
//
//   DataParallel ddp(*net, group);
//   Watch watch(ddp, group);  // anywhere before the loop, at the same place on every rank; nothing else changes
//
// Rank 0 prints every hundred steps, and at the end of a shorter run:
//
//   firkin.watch, steps 21 to 120, 8 ranks: 312 ms a step
//     communication not hidden     41 ms, 13.1 %   all-reduces at 1200 MB/s or more
//     waiting for others            9 ms,  2.9 %   on average; rank 5 is last in 71 % of the steps, by 10 ms in the median, ...
//     a better bucket size could gain at most 24 ms, 7.7 %: worth a firkin.tune
//     next: firkin.tune(net, step) tries other bucket sizes
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/plan/watched_steps.h"

namespace firkin {

struct WatchOptions {
  int64_t every = 100;                          // steps in a window
  int64_t warmup = 20;                          // steps before the first window
  std::function<void(const std::string&)> log;  // called on rank 0; by default it prints to std::cerr
};

// Reads DataParallel::stats() when a step ends. Ranks exchange what they have read through the group's store, without
// waiting. Results of steps stay the same, bit for bit. The phases are "before backward" (from the end of a step to the
// first gradient of the next) and "backward". docs/watch.md says what the figures do not show. Not thread-safe. A
// DataParallel takes one Watch at a time, which must be destroyed before it.
class Watch {
 public:
  // group: the group of `ddp`. Throws InputError for options out of range.
  Watch(DataParallel& ddp, const ProcessGroup& group, WatchOptions options = {});
  // Calls close() with its default, unless an exception is under way.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Ends the watch, and reports the window that is being collected or, within the first, the steps so far. Rank 0 waits
  // up to `timeout` for the other ranks' steps; they do not wait. Does nothing the second time. Throws what the store
  // throws.
  void close(std::chrono::milliseconds timeout = std::chrono::seconds(5));

  // The last complete window, on rank 0. It has no steps before the first window ends, and on other ranks.
  const WatchSummary& summary() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace firkin
