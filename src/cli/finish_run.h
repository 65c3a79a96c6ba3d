// How a command ends: where its files go, and what it prints.
#pragma once

#include <string>
#include <vector>

#include "command.h"
#include "results/results.h"

namespace firkin::cli {

// A file of the output folder, beside results.json and report.html.
struct OutputFile {
  std::string name;
  std::string content;
};

// The head of a result that started now, with every flag as it is in force. `environment` holds the version only.
Run start_run(const std::string& command, const CommonFlags& common);

// results.json, report.html and `files`, as far as they are known. Throws RuntimeError when the disk does not take them.
void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {});

// Writes the files, prints the result (all of it in text, or with --json as JSON), and says what was written. When the files cannot be
// written the result is printed all the same, and the exception goes on.
void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files = {});

}  // namespace firkin::cli
