// Divides the time of training steps, as each rank has seen its own, into work, waiting for slower ranks, and exposed
// communication.
//
//   const WatchSummary summary = summarize(of_every_rank);
//   fmt::print("{}", describe(summary));
//
// Clocks of different ranks are never compared. A step ends with its last all-reduce, at nearly the same moment on
// every rank, so a rank's work is the time from the end of one step to its last gradient of the next. The rank with the
// most work was last; others waited for it by the difference of work, and what it still waits for is exposed
// communication.
//
// The sentences are made here and not in report/, because a training prints them (firkin/ddp/watch.h), which needs neither
// results nor their tables. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace firkin {

// One step as one rank saw it, in seconds.
struct RankStep {
  int64_t step = 0;                 // the same number on every rank
  std::vector<double> phases_s;     // one after another, from the end of the previous step to the last gradient
  double exposed_s = 0;             // from the last gradient to the end
  double gradients_s = 0;           // from the first gradient to the end
  std::vector<double> sent_s = {};  // per bucket, from its launch to the end of the step
};

struct RankSteps {
  std::string host;
  int64_t threads = 1;              // how many threads the rank computes with
  std::vector<int64_t> cpus = {};   // the CPUs that it may use
  std::vector<std::string> phases;  // the names of phases
  // Whether buffers are broadcast at the beginning of phase 1, where ranks wait for one that is late in phase 0.
  bool broadcasts_in_forward = false;
  std::vector<int64_t> bucket_bytes = {};  // in launch order; empty if unknown
  int64_t last_bytes = 0;                  // the size of the tensor whose gradient is the last
  // Whether PyTorch keeps the buckets that it made before it knew the order of gradients (find_unused_parameters).
  bool keeps_first_buckets = false;
  // How many passes that averaged gradients were watched up to the next such pass, and how many of these changed the
  // parameters in between. Both 0 if unknown.
  int64_t averaged = 0, updated = 0;
  std::vector<std::string> settings = {};  // "NAME=value" of the environment, those in kOverlapSettings
  std::vector<RankStep> steps;
};

// Variables of the environment that can keep collectives on a GPU from overlapping computation, and why.
struct OverlapSetting {
  const char* text;
  const char* why;
};
inline constexpr std::array kOverlapSettings = {
    OverlapSetting{"CUDA_DEVICE_MAX_CONNECTIONS=1",
                   "lets all streams of a GPU share one queue, where a collective can wait for computation"},
    OverlapSetting{"TORCH_NCCL_ENABLE_TIMING=1", "records more events, with which collectives can fail to overlap computation"},
};

// Convert to and from JSON, the fields under their names, so that ranks can exchange it through a store.
// parse_rank_steps() throws InputError if the text is no such JSON.
std::string rank_steps_text(const RankSteps& steps);
RankSteps parse_rank_steps(const std::string& text);

// Over the steps that all ranks have seen with the buckets of rank 0, in seconds: medians, if nothing else is said.
struct WatchSummary {
  int64_t ranks = 0, steps = 0;  // without steps everything else is empty
  int64_t first_step = 0, last_step = 0;
  double step_s = 0;
  std::vector<std::string> phases;
  std::vector<double> phases_s;  // on the rank that was last in each step
  double exposed_s = 0;          // on that rank
  double step_error_s = 0;       // half of the 95 % interval of step_s; 0 if there are too few steps for one
  double waiting_s = 0;          // the mean over ranks and steps
  std::vector<double> waited_s;  // the mean of each rank
  int64_t last_rank = 0;         // the rank that was last in the most steps
  double last_share = 0;         // the share of steps in which it was
  double last_by_s = 0;          // how much more work it then had than the median of the others: the median of these steps
  std::string last_in;           // the phase with most of that
  // What other buckets could gain, at the rate seen; all of exposed_s if that is unknown, or of many small buckets.
  double gain_at_most_s = 0;
  double bytes_per_s = 0;  // the rate of all-reduces, at least, from the buckets' own times; 0 if unknown
  std::vector<int64_t> bucket_bytes;
  std::vector<std::string> causes;  // those of the two below that take 5 % of a step or more, the larger first
  // If communication is a cause: why it is not hidden, as far as a measurement or a setting shows it. One sentence each.
  std::vector<std::string> reasons;
  std::vector<std::string> next;   // what to do, about what takes most of a step first
  std::vector<std::string> notes;  // what makes the figures doubtful, one sentence each
};
inline constexpr double kWorthTuning = 0.02;  // the least gain, as a share of a step, that may be worth a tuning
inline constexpr const char* kCommunicationCause = "communication";
inline constexpr const char* kSlowRankCause = "slow rank";  // one rank is last in two thirds of the steps

// Throws std::invalid_argument if there are no ranks, or if their phases differ.
WatchSummary summarize(const std::vector<RankSteps>& ranks);

// Four lines, and one for each reason, next step and note. A single line if there are no steps.
std::string describe(const WatchSummary& summary);

std::string summary_text(const WatchSummary& summary);  // as JSON: the fields under their names, and "lines"

}  // namespace firkin
