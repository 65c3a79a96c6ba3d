// firkin compare: two results.json of one subcommand.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "compare_output.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
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
nlohmann::json read_results(const std::string& path) {
  static const std::string kExpected = "the results.json of a subcommand";
  nlohmann::json results = parse_json(read_text_file(path, kLongestJsonLine, kExpected), path, kExpected);
  try {
    measured_settings(results);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path, error.what()));
  }
  return results;
}

int run(const CompareFlags& flags) {
  const nlohmann::json a = read_results(flags.a);
  const nlohmann::json b = read_results(flags.b);
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
