// What the commands of firkin-measure share: how to start ranks, the job they run (a transformer language model on
// text, or a replayed profile), and the strategies.
//
//   return run_on_ranks(flags, [&](const ProcessGroup& group) {
//     Results results = begin_run("tune", flags.common, group);   // on every rank, before anything is measured
//     ...
//     if (group.rank == 0) finish_run(flags.common, results, {{"tensors.csv", csv}});
//   });
#pragma once

#include "bench/step_bench.h"
#include "firkin/comm/process_group.h"
#include "flags.h"
#include "workload/workload.h"

namespace firkin::cli {

// ---- ranks

// How many ranks there will be in all, and on this machine.
int world_size(const RankFlags& flags);
int local_ranks(const RankFlags& flags);

// Claims --out and runs `body` in every rank: in this process if a launcher (torchrun, mpirun, srun, or --ranks itself)
// started it as a rank, else in --ranks new processes of this program. Returns the exit code. Check all input first, so
// that bad input is reported once.
int run_on_ranks(RunFlags& flags, const std::function<void(const ProcessGroup&)>& body);

// Starts a result as start_run() does, and adds the machines of all ranks. Collective.
Results begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group);

// ---- the job

// The memory for all ranks of this machine: --memory-limit for each, or else what is available.
int64_t available_memory(const std::optional<int64_t>& limit_bytes, const RankFlags& ranks);

// Read the text and check what flags alone do not show. check_job() also checks the memory, on GPUs only with a limit:
// a GPU reports by itself when it is full. Throw InputError.
void check_job_flags(const JobFlags& flags);
void check_job(const JobFlags& flags, const RankFlags& ranks);

// The memory that tensors will take on one rank.
MemoryEstimate estimate_job_memory(const JobFlags& flags);

// The model and the text it is trained on, by default the one in data_folder(). Allocates no parameter. Throws as
// data_folder().
ModelDescription describe_job(const JobFlags& flags);

// The same parameters on every rank (from the seed), and this rank's part of each global batch.
Workload make_job(const JobFlags& flags, const ProcessGroup& group, uint64_t seed);

// ---- the strategies

// One setting per strategy, or per strategy and cap if the strategy takes caps. Throws InputError.
std::vector<StepSetting> make_settings(const std::vector<std::string>& strategies, const std::vector<int64_t>& caps,
                                       const CapOptions& rule);

// ---- the commands: each runs with its parsed flags and returns the exit code

int run(AllReduceFlags& flags);
int run(ChunksFlags& flags);
int run(CollectivesFlags& flags);
int run(PairsFlags& flags);
int run(LayersFlags& flags);
int run(StepFlags& flags);
int run(TraceFlags& flags);
int run(TuneFlags& flags);

}  // namespace firkin::cli
