// firkin compare: two results.json of one subcommand.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "compare_output.h"
#include "firkin/base/error.h"
#include "report/comparison.h"

namespace firkin::cli {
namespace {

struct CompareFlags {
  std::string a;
  std::string b;
  bool json = false;
  uint64_t seed = 0;
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

int run(const CompareFlags& flags) {
  const Results a = read_measured(flags.a);
  const Results b = read_measured(flags.b);
  const Comparison comparison = compare_results(a, b, flags.seed);
  if (flags.json) {
    nlohmann::json json = comparison_json(comparison);
    json["a"] = flags.a;
    json["b"] = flags.b;
    print_json(json);
  } else {
    fmt::print("A  {}\nB  {}\n\n{}", flags.a, flags.b, comparison_text(comparison));
  }
  return 0;
}

}  // namespace

Run declare_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  app.footer(
      "Reads results of tune, bench step and bench allreduce.\n\n"
      "  firkin compare before/results.json after/results.json\n");
  app.add_option("A", flags->a, "the first results.json")->required();
  app.add_option("B", flags->b, "the second; a ratio is B / A")->required();
  app.add_flag("--json", flags->json, "print the result as JSON on standard output");
  app.add_option("--seed", flags->seed, "seed of the bootstrap")->capture_default_str();
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
