// What subcommands that run on several ranks share: the way into the ranks; what is stepped (a transformer language model on text, or the
// replay of a profile); and under which strategies.
//
//   return run_on_ranks(flags, [&](const ProcessGroup& group) {
//     Results results = begin_run("tune", flags.common, group);   // on every rank, before anything is measured
//     ...
//     if (group.rank == 0) finish_run(flags.common, results, {{"tensors.csv", csv}});
//   });
#pragma once

#include <ATen/core/ScalarType.h>

#include <map>

#include "bench/step_bench.h"
#include "command.h"
#include "firkin/comm/process_group.h"
#include "model/memory_estimate.h"
#include "model/transformer_config.h"
#include "workload/synthetic_workload.h"
#include "workload/workload.h"

namespace firkin::cli {

// ---- ranks

struct RankFlags {
  std::optional<int> ranks;  // to start here; without: 2, or 1 that stands for `world`
  double timeout_s = 1800;
  std::string backend = "auto";     // of GroupOptions
  std::string device = "auto";      // of device_for_rank()
  int threads = 0;                  // per rank; 0: the machine's cores shared among its ranks
  std::optional<std::string> link;  // of parse_link()
  std::optional<int64_t> world;     // that the link is timed for; without: as many as there are ranks
};

// What every subcommand that runs on ranks takes: also --seed.
struct RunFlags {
  CommonFlags common;
  RankFlags ranks;
};
void add_run_flags(CLI::App& app, RunFlags& run, const std::string& command);

// Whether ranks are on GPUs.
bool uses_gpus(const RankFlags& flags);

// How many ranks there will be: in all, and on this machine.
int world_size(const RankFlags& flags);
int local_ranks(const RankFlags& flags);

// Whether this process writes the result: it is rank 0.
bool writes_results();

// Claims --out unless it is claimed, and runs `body` in every rank: here, when a launcher (torchrun, mpirun, srun, or --ranks itself)
// started this process as a rank; otherwise it starts --ranks processes of this program, which come back here as ranks. Returns the exit
// code. Check all input before: then bad input is reported once, and before any rank starts.
int run_on_ranks(RunFlags& flags, const std::function<void(const ProcessGroup&)>& body);

// A result with the head of start_run(), and in it the machines of all ranks. Collective.
Results begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group);

// ---- a model

struct ModelFlags {
  std::string model = "demo";
  std::map<std::string, int64_t> sizes;  // by their name in kConfigSizes: those that the user changed
  std::string dtype = "fp32";            // of parameters, gradients and activations
};

// --model, --dtype, and a flag for every size; or only the last two.
void add_model_flags(CLI::App& app, ModelFlags& flags);
void add_model_detail_flags(CLI::App& app, ModelFlags& flags);

// The names of all of them, with their dashes.
std::vector<std::string> model_flag_names();

at::ScalarType model_dtype(const ModelFlags& flags);
int64_t element_bytes(const ModelFlags& flags);

// The configuration that the flags describe. Throws InputError.
TransformerConfig model_config(const ModelFlags& flags);
// The same, for sequences of so many tokens (--sequence) in batches of so many (`batch_flag`). Throws InputError.
TransformerConfig model_config(const ModelFlags& flags, int64_t sequence, const char* batch_flag, int64_t batch);

// The model for people and scripts, without what it is trained on. Allocates no parameter.
ModelDescription describe_model(const ModelFlags& flags);

// What is trained on: `file`, or where that is empty the text that Firkin ships in $FIRKIN_DATA; or in share/firkin of the folder into
// which the running program was installed, wherever that was moved; or in data/ of the source tree. Throws InputError when $FIRKIN_DATA is
// not a folder, RuntimeError when there is none of the others.
std::filesystem::path text_or_shipped(const std::string& file);

// --memory-limit, of one rank.
void add_memory_flag(CLI::App& app, std::optional<int64_t>& limit_bytes);

// What all ranks of this machine may take: --memory-limit for each, or what is available.
int64_t available_memory(const std::optional<int64_t>& limit_bytes, const RankFlags& ranks);

// Throws InputError unless all ranks of this machine have room; on GPUs only where there is a limit: they say themselves when they are
// full.
void check_memory(const MemoryEstimate& estimate, const std::optional<int64_t>& limit_bytes, const RankFlags& ranks);

// ---- the job of the benchmarks

struct JobFlags {
  ModelFlags model;
  int64_t batch_size = 4;         // sequences per rank
  int64_t sequence_length = 128;  // tokens
  std::string data;               // file; empty: the text that Firkin ships
  double learning_rate = 0.01;
  std::optional<int64_t> memory_limit_bytes;  // per rank; without: what is available
  std::string replay;                         // a tensors.csv instead of the model
  ReplayScale replay_scale;
};
void add_job_flags(CLI::App& app, JobFlags& flags);

// The part of them that a benchmark over several models and shapes shares: --data, --learning-rate, --memory-limit.
void add_training_flags(CLI::App& app, JobFlags& flags);

// --replay, --scale-bytes, --scale-time
void add_replay_flags(CLI::App& app, JobFlags& flags);
// Throws InputError when a flag of the model stands beside --replay.
void check_replay_alone(const CLI::App& app);

// Reads the text and checks everything that can be checked before ranks start; check_job(): and the memory. Throw InputError.
void check_job_flags(const JobFlags& flags);
void check_job(const JobFlags& flags, const RankFlags& ranks);

// What tensors will hold on one rank.
MemoryEstimate estimate_job_memory(const JobFlags& flags);

// The model and what it is trained on. Allocates no parameter.
ModelDescription describe_job(const JobFlags& flags);

// The same parameters on every rank (from the seed), and this rank's part of each global batch.
Workload make_job(const JobFlags& flags, const ProcessGroup& group, uint64_t seed);

// ---- under which strategies

// --blocks, --warmup and --steps-per-block.
void add_block_flags(CLI::App& app, StepBenchOptions& steps, const char* blocks_in_help);

// --strategies, with the names that it takes, and --cap.
void add_strategy_flags(CLI::App& app, std::vector<std::string>& strategies, std::vector<int64_t>& caps);

// A cap as it was typed: 0.05 for 52429 bytes.
double cap_in_mib(int64_t bytes);

// One per strategy, or per strategy and cap where a strategy takes caps. Throws InputError.
std::vector<StepSetting> make_settings(const std::vector<std::string>& strategies, const std::vector<int64_t>& caps, const RuleFlags& rule);

// What "none", "naive" and so on are, for --help.
extern const char* const kStrategiesInHelp;

// Throws InputError when a list's flag has no value, or one twice.
template <typename T>
void check_list(const char* flag, const std::vector<T>& values) {
  if (values.empty()) throw InputError(fmt::format("{}: expected at least one value", flag));
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) != value)
      throw InputError(fmt::format("{}: {} is given twice; expected each value once", flag, *value));
  }
}

}  // namespace firkin::cli
