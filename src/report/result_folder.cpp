#include "report/result_folder.h"

#include "firkin/base/file.h"
#include "firkin/base/output_folder.h"
#include "report/report.h"

namespace firkin {
namespace {

constexpr const char* kPageFile = "report.html";

}  // namespace

Results with_files(Results results, const std::vector<OutputFile>& files) {
  results.run.files = {kPageFile, kResultsFile};
  for (const OutputFile& file : files) results.run.files.push_back(file.name);
  return results;
}

void write_result(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files) {
  write_file_atomically(folder / kResultsFile, results_text(results));
  write_file_atomically(folder / kPageFile, render_report(results));
  for (const OutputFile& file : files) write_file_atomically(folder / file.name, file.content);
}

}  // namespace firkin
