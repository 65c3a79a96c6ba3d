#include "finish_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>

#include "firkin/base/file.h"
#include "report/report.h"
#include "report/text.h"

namespace firkin::cli {
namespace {

constexpr const char* kPageFile = "report.html";

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Every flag by its name, as it is in force; not those that say where the result goes.
nlohmann::json settings_of(const CLI::App& app) {
  nlohmann::json settings = nlohmann::json::object();
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (name == "help" || name == "json" || name == "out" || name == "resume" || name == "config") continue;
    const std::vector<std::string> values = option->count() > 0 ? option->results() : std::vector{option->get_default_str()};
    settings[name] = fmt::format("{}", fmt::join(values, ","));
  }
  return settings;
}

}  // namespace

Run start_run(const std::string& command, const CommonFlags& common) {
  Run run;
  run.command = command;
  run.command_line = command_line();
  run.command_line.insert(run.command_line.begin(), "firkin");
  run.started = utc_now();
  run.seed = static_cast<int64_t>(common.seed);
  run.settings = settings_of(*common.app);
  run.environment.firkin = FIRKIN_VERSION;
  return run;
}

void claim_output_folder(CommonFlags& common, bool writes) {
  check_output_folder(common.out, "--out");
  if (writes) common.folder = std::make_shared<OutputFolder>(OutputFolderLock(common.out, "--out"));
}

void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files) {
  const std::filesystem::path out = common.out;
  Results written = results;
  written.run.files = {kResultsFile, kPageFile};
  for (const OutputFile& file : files) written.run.files.push_back(file.name);
  if (common.folder && !common.folder->older_result_is_kept) {
    if (const auto older = keep_older_result(out, written.run.files)) {
      fmt::print(stderr, "firkin: the result that was in {} is now in {}\n", out.string(), older->string());
    }
    common.folder->older_result_is_kept = true;
  }
  write_file_atomically(out / kResultsFile, results_text(written));
  write_file_atomically(out / kPageFile, render_report(written));
  for (const OutputFile& file : files) write_file_atomically(out / file.name, file.content);
}

void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files) {
  std::exception_ptr not_written;
  try {
    write_run_files(common, results, files);
  } catch (...) {
    not_written = std::current_exception();
  }
  if (common.json) {
    fmt::print("{}", results_text(results));
  } else {
    fmt::print("{}", results_in_text(results));
    std::string names = fmt::format("{}, {}", kPageFile, kResultsFile);
    for (const OutputFile& file : files) names += ", " + file.name;
    if (!not_written) fmt::print("\n{}", wrapped("wrote ", fmt::format("{}/: {}", common.out, names)));
  }
  std::fflush(stdout);
  if (not_written) std::rethrow_exception(not_written);
}

}  // namespace firkin::cli
