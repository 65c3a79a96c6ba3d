// The training job that the benchmarks step: a transformer language model on text, or the replay of a profile.
#pragma once

#include <optional>
#include <string>

#include "command.h"
#include "firkin/comm/process_group.h"
#include "model/memory_estimate.h"
#include "model_flags.h"
#include "rank_flags.h"
#include "workload/synthetic_workload.h"
#include "workload/workload.h"

namespace firkin::cli {

struct JobFlags {
  ModelFlags model;
  int64_t batch_size = 4;         // sequences per rank
  int64_t sequence_length = 128;  // tokens
  std::string text;               // file; empty: the text that Firkin ships
  double learning_rate = 0.01;
  std::optional<double> memory_limit_gib;  // per rank; without: what is available
  std::string replay;                      // a tensors.csv instead of the model
  ReplayScale replay_scale;
};
void add_job_flags(CLI::App& app, JobFlags& flags);

// The part of them that a benchmark over several models and shapes shares: --text, --learning-rate.
void add_training_flags(CLI::App& app, JobFlags& flags);

// --memory-limit-gib
void add_memory_flag(CLI::App& app, std::optional<double>& limit_gib);
int64_t memory_limit_bytes(double limit_gib);  // that the flag takes

// --replay, --scale-bytes, --scale-time
void add_replay_flags(CLI::App& app, JobFlags& flags);
// Throws InputError when a flag of the model stands beside --replay.
void check_replay_alone(const CLI::App& app);

// Reads the text and checks everything that can be checked before ranks start. Throws InputError.
void check_job_flags(const JobFlags& flags);

// What tensors will hold on one rank.
MemoryEstimate estimate_job_memory(const JobFlags& flags);

// Throws InputError unless all ranks of this machine can train the job in the memory that is free, or that --memory-limit-gib names.
void check_job_memory(const JobFlags& flags, const RankFlags& ranks);

// The model and what it is trained on. Allocates no parameter.
ModelDescription describe_job(const JobFlags& flags);

// The same parameters on every rank (from the seed), and this rank's part of each global batch.
Workload make_job(const JobFlags& flags, const ProcessGroup& group, uint64_t seed);

}  // namespace firkin::cli
