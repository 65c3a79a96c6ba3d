// What ran when on one rank, and how much of its communication ran beside computation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace firkin {

enum class Activity {
  kPhase,       // a part of a training step that the program names: forward, backward
  kOperator,    // computation: a tensor operator, or a node of autograd's graph; with a GPU, what that runs
  kCollective,  // from when the transport takes it up (Gloo: a thread of its own) until its result is there
  kHost,        // with a GPU: the CPU queues work for it
};

// Times are nanoseconds since the Unix epoch.
struct Span {
  std::string name;
  Activity activity = Activity::kOperator;
  uint64_t thread = 0;  // the one on which it started
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t elements = 0;  // of a collective's tensors; 0 for the others
};

// Seconds. Overlapped communication is not free communication: where the transport runs on the cores that compute, both get slower.
struct Overlap {
  double compute_s = 0;        // at least one operator ran
  double communication_s = 0;  // at least one collective was under way
  double overlapped_s = 0;     // both
};

Overlap overlap_of(const std::vector<Span>& spans);

// Those that start between start_ns (included) and end_ns (not included).
std::vector<Span> spans_between(const std::vector<Span>& spans, int64_t start_ns, int64_t end_ns);

// What of each span lies between start_ns and end_ns: a collective may begin in one step and end in the next.
std::vector<Span> spans_cut_to(const std::vector<Span>& spans, int64_t start_ns, int64_t end_ns);

// When the first span of any rank starts; the latest int64_t where there is none.
int64_t first_start_ns(const std::vector<std::vector<Span>>& spans_by_rank);

struct Period {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

double seconds_of(const Period& period);

// The times at which at least one span of `activity` ran: in order, more than least_gap_ns apart; shorter gaps are closed.
std::vector<Period> busy_periods(const std::vector<Span>& spans, Activity activity, int64_t least_gap_ns = 0);

}  // namespace firkin
