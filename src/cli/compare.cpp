// firkin compare: two results.json of one subcommand.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "finish_run.h"
#include "firkin/base/error.h"

namespace firkin::cli {
namespace {

struct CompareFlags {
  CommonFlags common;
  std::string a;
  std::string b;
};

// Complaints name the file that they are about.
Results read_measured(const std::string& path) {
  Results results = read_results(path);
  try {
    measured_settings(results);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path, error.what()));
  }
  return results;
}

int run(CompareFlags& flags) {
  claim_output_folder(flags.common);
  Results results;
  results.run = start_run("compare", flags.common);
  const Results a = read_measured(flags.a);
  const Results b = read_measured(flags.b);
  results.comparison = compare_results(a, b);
  results.comparison->a_file = flags.a;
  results.comparison->b_file = flags.b;
  finish_run(flags.common, results);
  return 0;
}

}  // namespace

Run declare_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  app.footer(
      "Reads results of tune, bench step and bench allreduce. B/A: medians, with the\n"
      "95 % interval of their ratio; B is faster or slower where it excludes 1.\n\n"
      "  firkin compare before/results.json after/results.json\n");
  app.add_option("A", flags->a, "the first results.json")->required();
  app.add_option("B", flags->b, "the second; a ratio is B / A")->required();
  add_output_flags(app, flags->common, "compare");
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
