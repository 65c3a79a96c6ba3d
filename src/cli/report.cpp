// firkin report: results.json -> report.html
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/report/report.h"

namespace firkin::cli {
namespace {

struct ReportFlags {
  std::string results = "firkin-out/results.json";
  std::string html;
};

nlohmann::json read_results(const std::string& path) {
  try {
    return nlohmann::json::parse(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: {}", path, error.what()));
  }
}

int run(const ReportFlags& flags) {
  const std::filesystem::path html =
      flags.html.empty() ? std::filesystem::path(flags.results).replace_filename("report.html") : std::filesystem::path(flags.html);
  write_file_atomically(html, render_report(read_results(flags.results)));
  fmt::print("wrote {}\n", html.string());
  return 0;
}

}  // namespace

Run declare_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  app.add_option("results", flags->results, "a results.json of any subcommand")->capture_default_str();
  app.add_option("--html", flags->html, "the page to write (default: report.html beside the results)");
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
