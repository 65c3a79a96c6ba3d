// firkin report and firkin compare: a page of a result that was written before, and two results side by side.
#include "command.h"
#include "firkin/base/file.h"

namespace firkin::cli {
namespace {

// A results.json, or the one in a folder.
std::filesystem::path result_file(const std::filesystem::path& named) {
  return std::filesystem::is_directory(named) ? named / kResultsFile : named;
}

// ---- firkin report

struct ReportFlags {
  std::string result = "firkin-out/tune/results.json";
  std::string html, out;
  bool json = false;
};

int run(const ReportFlags& flags) {
  const std::filesystem::path file = result_file(flags.result);
  const std::filesystem::path beside = flags.out.empty() ? file.parent_path() : std::filesystem::path(flags.out);
  const std::filesystem::path html = flags.html.empty() ? beside / "report.html" : std::filesystem::path(flags.html);
  if (std::filesystem::is_directory(html)) throw InputError(fmt::format("--html {}: it is a folder; expected a file", html.string()));
  const Results results = read_results(file);
  check_output_folder(html.has_parent_path() ? html.parent_path() : ".", flags.out.empty() ? "--html" : "--out");
  write_file_atomically(html, render_report(results));
  if (flags.json) {
    print_json({{"files", nlohmann::json::array({html.string()})}});
  } else {
    fmt::print("wrote {}\n", html.string());
  }
  return 0;
}

// ---- firkin compare

struct CompareFlags {
  CommonFlags common;
  std::string a;
  std::string b;
  bool fails_if_slower = false;
};

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
  results.comparison = compare_files(result_file(flags.a), result_file(flags.b));
  finish_run(flags.common, results);
  if (flags.fails_if_slower) fail_if_slower(results.comparison->settings);
  return 0;
}

}  // namespace

Run declare_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  app.footer(
      "  firkin report                              firkin-out/tune/results.json\n"
      "  firkin report run7                         run7/report.html\n");
  app.add_option("results", flags->result, "results.json file or its folder (default\nfirkin-out/tune/results.json)");
  CLI::Option* html = app.add_option("--html", flags->html, "the page (default: report.html beside the results)");
  app.add_option("--out", flags->out, "folder for report.html")->excludes(html);
  add_json_flag(app, flags->json);
  return [flags] { return run(*flags); };
}

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
