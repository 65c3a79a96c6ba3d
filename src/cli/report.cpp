// firkin report: a page of a result that was written before.
#include "command.h"

namespace firkin::cli {
namespace {

struct ReportFlags {
  std::string result = "firkin-out/tune/results.json";
  std::string out;
  bool json = false;
};

int run(const ReportFlags& flags) {
  const std::filesystem::path named = flags.result;
  const std::filesystem::path file = std::filesystem::is_directory(named) ? named / kResultsFile : named;
  const std::filesystem::path folder = flags.out.empty() ? file.parent_path() : std::filesystem::path(flags.out);
  const std::filesystem::path html = folder / "report.html";
  const Results results = read_results(file);
  check_output_folder(folder.empty() ? "." : folder, "--out");
  write_file_atomically(html, render_report(results));
  if (flags.json) {
    print_json({{"files", nlohmann::json::array({html.string()})}});
  } else {
    fmt::print("wrote {}\n", html.string());
  }
  return 0;
}

}  // namespace

Run declare_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  app.footer(
      "  firkin report                              firkin-out/tune/results.json\n"
      "  firkin report run7                         run7/report.html\n");
  app.add_option("results", flags->result, "results.json file or its folder (default\nfirkin-out/tune/results.json)");
  app.add_option("--out", flags->out, "folder for report.html (default: beside the results)");
  add_json_flag(app, flags->json);
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
