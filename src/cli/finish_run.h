// How a command ends: where its files go, and what it prints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "firkin/base/output_folder.h"
#include "report/result_folder.h"
#include "results/results.h"

namespace firkin::cli {

// A folder that this process writes into, and no other until it ends.
struct OutputFolder {
  explicit OutputFolder(const std::filesystem::path& folder) : lock(folder, "--out") {}

  OutputFolderLock lock;
  bool older_result_is_kept = false;  // moved to older/N, or there is none
};

// Before anything is measured: throws InputError when --out cannot be written to, or another run is writing into it. `writes`: whether this
// process is the one that will write (rank 0, or the one that starts the ranks).
void claim_output_folder(CommonFlags& common, bool writes = true);

// The head of a result that started now, with every flag as it is in force. `environment` holds the version only.
RunHead start_run(const std::string& command, const CommonFlags& common);

// Moves what an earlier run left under these names to older/N, which is said; once for a claimed folder.
void keep_older(const CommonFlags& common, const std::vector<std::string>& names);

// results.json, report.html and `files`, as far as they are known. What an earlier run left is kept beside them, which is said. Throws
// RuntimeError when the disk does not take them.
void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {});

// Writes the files, prints the result (as JSON with --json; else `text`, or all of it where there is none), and says what was written. When
// the files cannot be written the result is printed all the same, and the exception goes on.
void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {},
                const std::optional<std::string>& text = {});

}  // namespace firkin::cli
