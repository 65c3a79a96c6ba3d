// What is stepped: a transformer language model on text, or the replay of a profile; and under which strategies.
#pragma once

#include <ATen/core/ScalarType.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/step_bench.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/comm/process_group.h"
#include "model/memory_estimate.h"
#include "model/transformer_config.h"
#include "ranks.h"
#include "results/run.h"
#include "workload/synthetic_workload.h"
#include "workload/workload.h"

namespace firkin::cli {

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

// The folder with the files that Firkin ships: $FIRKIN_DATA; or share/firkin of the folder into which the running program was installed,
// wherever that was moved; or data/ of the source tree (not installed). Throws InputError when $FIRKIN_DATA is not a folder, RuntimeError
// when there is none of the others.
std::filesystem::path data_folder();

// What is trained on: `file`, or where that is empty the text that Firkin ships.
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
