// Where the time of a training goes while it runs: work, waiting for slower ranks, communication that nothing hides.
//
//   DataParallel ddp(*net, group);
//   Watch watch(ddp, group);  // anywhere before the loop, at the same place on every rank; nothing else changes
//
// Rank 0 says every hundred steps:
//
//   firkin.watch, steps 21 to 120, 8 ranks: 312 ms a step
//     communication not hidden     41 ms, 13.1 %
//     waiting for others            9 ms,  2.9 %   rank 5 is last in 71 % of the steps, by 10 ms, most of it in "before backward"
//     a better bucket size could gain at most 24 ms, 7.7 %: worth a firkin.tune
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/plan/watched_steps.h"

namespace firkin {

struct WatchOptions {
  int64_t every = 100;                          // steps
  int64_t warmup = 20;                          // steps that do not count
  std::function<void(const std::string&)> log;  // on rank 0; none: to std::cerr
};

// Looks at stats() as each step ends; ranks tell each other through the group's store, and nobody waits. Steps stay as they are, bit for
// bit. The phases are "before backward" (from the end of a step to the next one's first gradient) and "backward". docs/watch.md says what
// the figures cannot see. Not thread-safe; must go before the DataParallel, which has one at a time.
class Watch {
 public:
  // group: that of `ddp`. Throws InputError for options out of range.
  Watch(DataParallel& ddp, const ProcessGroup& group, WatchOptions options = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The last window, on rank 0; no steps before its end, and on the other ranks.
  const WatchSummary& summary() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace firkin
