// firkin report and firkin compare: a page of results that were written before, and two of them side by side.
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
  std::vector<std::string> results = {"firkin-out/tune/results.json"};
  std::string html, out;
  bool json = false;
};

constexpr const char* kFolderOfSeveral = "firkin-out/report";

// --html, or report.html in --out, or else beside the results; for several results in a folder of its own, which is
// none of theirs.
std::filesystem::path page_path(const ReportFlags& flags, const std::vector<std::filesystem::path>& results) {
  if (!flags.html.empty()) return flags.html;
  const std::string folder = flags.out.empty() && results.size() > 1 ? kFolderOfSeveral : flags.out;
  if (!folder.empty()) return std::filesystem::path(folder) / "report.html";
  return std::filesystem::path(results[0]).replace_filename("report.html");
}

int run(const ReportFlags& flags) {
  std::vector<std::filesystem::path> files;
  for (const std::string& named : flags.results) files.push_back(result_file(named));
  const std::vector<std::string> names = names_by_place(files);
  const std::filesystem::path html = page_path(flags, files);
  const std::filesystem::path folder = html.has_parent_path() ? html.parent_path() : ".";
  if (std::filesystem::is_directory(html)) throw InputError(fmt::format("--html {}: it is a folder; expected a file", html.string()));
  std::vector<Results> several;
  for (const std::filesystem::path& file : files) several.push_back(read_results(file));
  check_output_folder(folder, flags.html.empty() && (!flags.out.empty() || files.size() > 1) ? "--out" : "--html");
  write_file_atomically(html, render_reports(several, names));
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
      "  firkin report run7                         run7/report.html\n"
      "  firkin report a b --html both.html         trainings in the same charts\n");
  app.add_option("results", flags->results, "results.json files or their folders (default\nfirkin-out/tune/results.json)");
  CLI::Option* html = app.add_option("--html", flags->html,
                                     "the page (default: report.html beside the results; for\nseveral, firkin-out/report/report.html)");
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
