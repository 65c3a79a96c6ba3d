// How a measuring command begins and ends: what it states about itself, where its files go, what it prints.
//
//   Results results;
//   results.run = begin_run("tune", flags.common, flags.ranks, group);   // on every rank, before anything is measured
//   ...
//   if (group.rank == 0) finish_run(flags.common, results, {{"tensors.csv", csv}});
#pragma once

#include <string>
#include <vector>

#include "command.h"
#include "firkin/comm/process_group.h"
#include "rank_flags.h"
#include "results/results.h"

namespace firkin::cli {

// A file of the output folder, beside results.json and report.html.
struct OutputFile {
  std::string name;
  std::string content;
};

// The head of the result: started now, with these flags, on the machines of all ranks. Collective.
Run begin_run(const std::string& command, const CommonFlags& common, const RankFlags& ranks, const ProcessGroup& group);

// What differs between an earlier run and one that these flags would start here: "batch 4, now 2", "host a, now b"; empty: nothing.
std::string difference_from(const Run& earlier, const CommonFlags& common, const RankFlags& ranks);

// results.json, report.html and `files`, as far as they are known. Throws RuntimeError when the disk does not take them.
void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {});

// Writes the files, prints the result (with --json as JSON, else `text`, or all of the result where that is empty), and says what was
// written. When the files cannot be written the result is printed all the same, and the exception goes on.
void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files, const std::string& text = "");

}  // namespace firkin::cli
