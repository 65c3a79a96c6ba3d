// The folder of a result: results.json, report.html, and tables beside them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "results/results.h"

namespace firkin {

// A file of the folder, beside results.json and report.html.
struct OutputFile {
  std::string name;
  std::string content;
};

// `results` with the names of all that write_result() writes.
Results with_files(Results results, const std::vector<OutputFile>& files);

// results: with_files(). Every file is whole or not there. Throws RuntimeError when the disk does not take them.
void write_result(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files);

}  // namespace firkin
