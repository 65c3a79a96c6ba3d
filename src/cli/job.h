// What the commands of firkin-measure share: the way into the ranks; what is stepped (a transformer language model on text, or the replay
// of a profile); and under which strategies.
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
#include "workload/synthetic_workload.h"
#include "workload/workload.h"

namespace firkin::cli {

// ---- ranks

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

// ---- the job

// What all ranks of this machine may take: --memory-limit for each, or what is available.
int64_t available_memory(const std::optional<int64_t>& limit_bytes, const RankFlags& ranks);

// Reads the text and checks what the flags alone do not show; check_job(): and the memory, on GPUs only where there is a
// limit: they say themselves when they are full. Throw InputError.
void check_job_flags(const JobFlags& flags);
void check_job(const JobFlags& flags, const RankFlags& ranks);

// What tensors will hold on one rank.
MemoryEstimate estimate_job_memory(const JobFlags& flags);

// The model and what it is trained on. Allocates no parameter. The text, without --data, is the one that Firkin ships, in $FIRKIN_DATA; or
// in share/firkin of the folder into which the running program was installed, wherever that was moved; or in data/ of the source tree.
// Throws InputError when $FIRKIN_DATA is not a folder, RuntimeError when there is none of the others.
ModelDescription describe_job(const JobFlags& flags);

// The same parameters on every rank (from the seed), and this rank's part of each global batch.
Workload make_job(const JobFlags& flags, const ProcessGroup& group, uint64_t seed);

// ---- under which strategies

// One per strategy, or per strategy and cap where a strategy takes caps. Throws InputError.
std::vector<StepSetting> make_settings(const std::vector<std::string>& strategies, const std::vector<int64_t>& caps, const RuleFlags& rule);

// ---- the commands: what each does once its flags are parsed; the exit code

int run(AllReduceFlags& flags);
int run(ChunksFlags& flags);
int run(CollectivesFlags& flags);
int run(LayersFlags& flags);
int run(StepFlags& flags);
int run(TraceFlags& flags);
int run(TuneFlags& flags);

}  // namespace firkin::cli
