// How a command that runs on several ranks begins: what its result states about the run.
//
//   Results results;
//   results.run = begin_run("tune", flags.common, group);   // on every rank, before anything is measured
//   ...
//   if (group.rank == 0) finish_run(flags.common, results, {{"tensors.csv", csv}});
#pragma once

#include <string>

#include "finish_run.h"
#include "firkin/comm/process_group.h"
#include "rank_flags.h"

namespace firkin::cli {

// start_run(), and the machines of all ranks. Collective.
RunHead begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group);

// What differs between an earlier run and one that these flags would start here: "batch 4, now 2", "host a, now b"; empty: nothing.
std::string difference_from(const RunHead& earlier, const CommonFlags& common, const RankFlags& ranks);

}  // namespace firkin::cli
