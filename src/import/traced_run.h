// What the traces of a run say about it: its steps, its buckets, and what their communication cost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace firkin {

// One all-reduce of a step. Medians over the steps, on the first rank given, in seconds from the start of backward.
struct TracedBucket {
  int64_t bytes = 0;
  std::optional<int64_t> tensors = {};  // none if the sizes do not say which gradients it holds
  std::optional<double> ready_s = {};   // its last gradient
  double start_s = 0;
  double end_s = 0;
  std::optional<double> waiting_s = {};  // for the last rank; none unless several ranks' traces show the same steps
};

// Collectives that carry no gradients.
struct OtherCollectives {
  std::string name;
  std::string group;
  int64_t calls = 0;  // on the first rank given, in the whole trace
};

// A period of a step in which a rank computed or communicated, in seconds since the step began.
struct TracedPeriod {
  bool communicates = false;
  double start_s = 0;
  double end_s = 0;
};

struct TracedRank {
  std::string file;
  int64_t rank = 0;
  double step_s = 0;                        // median, as all of these
  double backward_s = 0;                    // until the last gradient is ready
  double exposed_s = 0;                     // from then until the last gradient has been reduced
  double communication_s = 0;               // during which at least one gradient's all-reduce was under way
  std::optional<double> waiting_s = {};     // for other ranks, in all-reduces
  std::vector<TracedPeriod> timeline = {};  // of one step
};

struct TracedRun {
  std::string backend;                     // "nccl", "gloo"; empty: not said
  std::optional<int64_t> world_size = {};  // none: not said
  int64_t steps = 0;
  int64_t tensors = 0;
  int64_t gradient_bytes = 0;
  std::vector<TracedRank> ranks = {};
  std::vector<TracedBucket> buckets = {};
  // bucket_cap_mb that makes these buckets, a round one, and the range of all that do. None: no cap does.
  std::optional<int64_t> cap_bytes = {}, lowest_cap_bytes = {}, highest_cap_bytes = {};
  bool is_default_cap = false;
  std::vector<OtherCollectives> others = {};
  std::vector<std::string> findings = {};  // what else is to be said, a sentence each

  // The least time of any step of any rank during which an all-reduce of gradients was under way.
  double least_communication_s = 0;
};

}  // namespace firkin
