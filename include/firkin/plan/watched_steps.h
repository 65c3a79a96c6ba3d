// Where the time of training steps goes, from what every rank saw of its own: work, waiting for a slower rank, and communication that
// nothing hides.
//
//   const WatchSummary summary = summarize(of_every_rank);
//   fmt::print("{}", describe(summary));
//
// Clocks of different ranks are never compared. A step ends with its last all-reduce, at nearly the same moment on every rank, so a rank's
// work is the time from the end of one step to its last gradient of the next. The rank with the most work was the last; another one waited
// for it by as much as its own work was less, and what the last rank still waits for is exposed communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace firkin {

// One step as one rank saw it. Microseconds.
struct RankStep {
  int64_t step = 0;                   // the same number on every rank
  std::vector<int64_t> phases_us;     // one after another, from the end of the step before to the last gradient
  int64_t exposed_us = 0;             // from the last gradient to the end
  int64_t gradients_us = 0;           // from the first gradient to the end
  std::vector<int64_t> sent_us = {};  // per bucket, from its launch to the end of the step; empty: unknown
};

struct RankSteps {
  std::string host;
  int64_t threads = 1;                     // that it computes with
  std::vector<int64_t> cpus = {};          // that it may use
  std::vector<std::string> phases;         // their names
  bool broadcasts_in_forward = false;      // buffers, as phase 1 begins: there ranks wait for one that is late in phase 0
  std::vector<int64_t> bucket_bytes = {};  // in launch order
  int64_t last_bytes = 0;                  // of the last gradient's tensor
  std::vector<RankStep> steps;
};

// As JSON, for a store: the fields under their names. parse_rank_steps() throws InputError for what is no JSON.
std::string rank_steps_text(const RankSteps& steps);
RankSteps parse_rank_steps(const std::string& text);

// Medians over the steps that all ranks have seen. Seconds.
struct WatchSummary {
  int64_t ranks = 0, steps = 0;  // steps 0: all else is empty
  int64_t first_step = 0, last_step = 0;
  double step_s = 0;
  std::vector<std::string> phases;
  std::vector<double> phases_s;  // of the last rank of each step
  double exposed_s = 0;          // of that rank
  double waiting_s = 0;          // mean over ranks and steps
  std::vector<double> waited_s;  // by rank, means
  int64_t last_rank = 0;         // last in the most steps
  double last_share = 0;         // in how many of them
  double last_by_s = 0;          // by how much then, over the median of the others
  std::string last_in;           // in which phase most of that was
  double gain_at_most_s = 0;     // by other buckets: a bound
  double bytes_per_s = 0;        // of the link, from the buckets' own times; 0: unknown
  std::vector<int64_t> bucket_bytes;
  std::vector<double> launched_s;   // per bucket, after the last gradient (negative: before)
  std::vector<std::string> causes;  // what takes 5 % of a step and more, of the two below, the larger first
  std::vector<std::string> notes;   // what makes the figures doubtful, one sentence each
};
inline constexpr const char* kCommunicationCause = "communication";
inline constexpr const char* kSlowRankCause = "slow rank";  // one rank is last in two thirds of the steps

// Throws std::invalid_argument without ranks, or where their phases differ.
WatchSummary summarize(const std::vector<RankSteps>& ranks);

// Four lines, and one for each note; a single one where there are no steps.
std::string describe(const WatchSummary& summary);

std::string summary_text(const WatchSummary& summary);  // as JSON: the fields under their names, and "lines"

}  // namespace firkin
