// firkin compare: two results of one subcommand.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "firkin/base/error.h"

namespace firkin::cli {
namespace {

struct CompareFlags {
  CommonFlags common;
  std::string a;
  std::string b;
  bool fails_if_slower = false;
};

// Complaints name the file that they are about.
Results read_measured(const std::filesystem::path& path) {
  Results results = read_results(path);
  try {
    measured_settings(results);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path.string(), error.what()));
  }
  return results;
}

// For CI: runs that have nothing in common prove nothing.
void fail_if_slower(const std::vector<ComparedSetting>& settings) {
  if (settings.empty()) throw RuntimeError("--fail-if-slower: no setting is in both runs; expected at least one");
  const auto slower = std::ranges::count(settings, Verdict::kSlower, &ComparedSetting::verdict);
  if (slower > 0) throw RuntimeError(fmt::format("--fail-if-slower: B is slower in {} of {} settings", slower, settings.size()));
}

int run(CompareFlags& flags) {
  claim_output_folder(flags.common);
  Results results;
  results.run = start_run("compare", flags.common);
  const std::filesystem::path a = result_file(flags.a);
  const std::filesystem::path b = result_file(flags.b);
  results.comparison = compare_results(read_measured(a), read_measured(b));
  results.comparison->a_file = a.string();
  results.comparison->b_file = b.string();
  finish_run(flags.common, results);
  if (flags.fails_if_slower) fail_if_slower(results.comparison->settings);
  return 0;
}

}  // namespace

Run declare_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  app.footer(
      "Reads results of tune, bench step and bench allreduce. B/A: medians, with the\n"
      "95 % interval of their ratio; B is faster or slower where it excludes 1.\n\n"
      "  firkin compare before after\n"
      "  firkin compare main.json branch.json --fail-if-slower      exit code 1 for CI\n");
  app.add_option("A", flags->a, "the first results.json, or its folder")->required();
  app.add_option("B", flags->b, "the second; ratios are B / A")->required();
  app.add_flag("--fail-if-slower", flags->fails_if_slower, "exit with 1 if any setting of B is slower");
  add_output_flags(app, flags->common, "compare");
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
