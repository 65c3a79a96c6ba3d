// The flags of the commands that measure: ranks, a job, strategies; and these commands. Needs no LibTorch.
#pragma once

#include <variant>

#include "command.h"
#include "measuring/steps.h"

namespace firkin::cli {

// ---- ranks

struct RankFlags {
  std::optional<int> ranks;  // to start here; default: 2, or 1 that stands for `world`
  double timeout_s = 1800;
  std::string backend = "auto";     // as in GroupOptions
  std::string device = "auto";      // as for device_for_rank()
  int threads = 0;                  // per rank; 0: the machine's cores shared among its ranks
  std::optional<std::string> link;  // as for parse_link()
  std::optional<int64_t> world;     // the link's time is that of so many ranks; default: as many as there are
};

// How many ranks start here without a launcher.
int ranks_to_start(const RankFlags& flags);

// The flags of every subcommand that runs on ranks, --seed included.
struct RunFlags {
  CommonFlags common;
  RankFlags ranks;
};

// ---- the job

struct JobFlags {
  ModelFlags model;
  int64_t batch_size = 4;                     // sequences per rank
  int64_t sequence_length = 128;              // tokens
  std::string data;                           // file; empty: the text that Firkin ships
  std::optional<int64_t> memory_limit_bytes;  // per rank; default: what is available
  std::string replay;                         // a tensors.csv instead of the model
  double scale_bytes = 1;                     // factor for the replay's gradient sizes
  double scale_time = 1;                      // factor for the replay's times
};

struct BlockFlags : StepCounts {
  int blocks = 20;
};

// ---- the commands

// The sizes to measure, with the names of nccl-tests, and the time for all of them.
struct SizeFlags {
  int64_t begin = 4, end = 64 * kMiB;  // bytes
  int64_t factor = 4;
  double seconds = 10;
};

struct AllReduceFlags : RunFlags {
  SizeFlags sizes;
};

struct ChunksFlags : RunFlags {
  SizeFlags sizes = {.begin = 16 * kKiB, .end = 256 * kMiB, .seconds = 60};
  int64_t elements = 60'000'000;
};

struct CollectivesFlags : RunFlags {
  SizeFlags sizes = {.begin = 4 * kKiB, .end = 64 * kMiB, .seconds = 30};
};

struct PairsFlags : RunFlags {
  int64_t bytes = 8 * kMiB;
  double seconds = 10;
};

struct LayersFlags : RunFlags {
  JobFlags job;
  int steps = 20;
};

struct StepFlags : RunFlags {
  JobFlags job;  // common to all configurations
  CapOptions rule;
  std::vector<std::string> models = {"demo"};
  std::vector<int64_t> batch_sizes = {4};
  std::vector<int64_t> sequence_lengths = {128};
  std::vector<std::string> strategies = {"none", "naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<int64_t> caps = {kMiB, 10 * kMiB, 100 * kMiB, 1000 * kMiB};
  BlockFlags steps;
  bool resume = false;
};

// The cells of the matrix, in the order in which they are measured; or the replay.
std::vector<JobFlags> jobs_of(const StepFlags& flags);

struct TraceFlags : RunFlags {
  JobFlags job;
  CapOptions rule;
  std::vector<std::string> strategies = {"naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<int64_t> caps = {4 * kMiB};
  int warmup_steps = 3;
  int steps = 3;
};

struct TuneFlags : RunFlags {
  JobFlags job;
  CapOptions rule;
  StepCounts steps;
  std::optional<int> blocks;      // that measure the gain; default: as many as settle it
  std::optional<double> seconds;  // in all
  std::vector<int64_t> caps;
  bool sharded = false;
  bool compare = false;
  int profile_steps = 20;
  double allreduce_seconds = 10;
};

// Whether this program can measure: it has LibTorch, or finds firkin-measure.
bool can_measure();

// A command that measures, with its parsed flags.
using Measurement =
    std::variant<AllReduceFlags*, ChunksFlags*, CollectivesFlags*, PairsFlags*, LayersFlags*, StepFlags*, TraceFlags*, TuneFlags*>;

// Runs the command and returns the exit code. The program without LibTorch becomes firkin-measure, which parses the
// same arguments again.
int measure(const Measurement& measurement);

}  // namespace firkin::cli
