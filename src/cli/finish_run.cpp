#include "finish_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <filesystem>

#include "firkin/base/file.h"
#include "report/text.h"

namespace firkin::cli {
namespace {

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

// Every file that a flag or an argument names.
std::vector<std::filesystem::path> inputs_of(const CLI::App& app) {
  std::vector<std::filesystem::path> inputs;
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string> values = option->results();
    inputs.insert(inputs.end(), values.begin(), values.end());
  }
  return inputs;
}

void write_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files) {
  keep_older(common, results.run.files);
  write_result(common.out, results, files);
}

}  // namespace

void keep_older(const CommonFlags& common, const std::vector<std::string>& names) {
  if (!common.folder || common.folder->older_result_is_kept) return;
  if (const auto older = keep_older_result(common.out, names, inputs_of(*common.app))) {
    fmt::print(stderr, "firkin: the result that was in {} is now in {}\n", common.out, older->string());
  }
  common.folder->older_result_is_kept = true;
}

RunHead start_run(const std::string& command, const CommonFlags& common) {
  RunHead run = begin_head(command);
  run.command_line = command_line();
  run.command_line.insert(run.command_line.begin(), "firkin");
  if (common.app->get_option_no_throw("--seed")) run.seed = static_cast<int64_t>(common.seed);
  run.settings = settings_of(*common.app);
  return run;
}

void claim_output_folder(CommonFlags& common, bool writes) {
  check_output_folder(common.out, "--out");
  if (writes) common.folder = std::make_shared<OutputFolder>(common.out);
}

void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files) {
  write_files(common, with_files(results, files), files);
}

void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files,
                const std::optional<std::string>& text) {
  const Results written = with_files(results, files);
  std::exception_ptr not_written;
  try {
    write_files(common, written, files);
  } catch (...) {
    not_written = std::current_exception();
  }
  if (common.json) {
    fmt::print("{}", results_text(written));
  } else {
    fmt::print("{}", text ? *text : results_in_text(written));
    if (!not_written) fmt::print("\n{}", wrapped("wrote ", fmt::format("{}/: {}", common.out, fmt::join(written.run.files, ", "))));
  }
  std::fflush(stdout);
  if (not_written) std::rethrow_exception(not_written);
}

}  // namespace firkin::cli
