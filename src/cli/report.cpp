// firkin report: results.json -> report.html, and its charts as images.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/report/images.h"
#include "firkin/report/report.h"

namespace firkin::cli {
namespace {

struct ReportFlags {
  std::string results = "firkin-out/results.json";
  std::string html;
  bool png = false;
  bool svg = false;
};

nlohmann::json read_results(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: {}; expected the results.json of a subcommand", path, error.what()));
  }
}

int run(const ReportFlags& flags) {
  const std::filesystem::path html =
      flags.html.empty() ? std::filesystem::path(flags.results).replace_filename("report.html") : std::filesystem::path(flags.html);
  const std::filesystem::path folder = html.has_parent_path() ? html.parent_path() : ".";
  const nlohmann::json results = read_results(flags.results);
  check_output_folder(folder, "--html");
  const std::string page = render_report(results);
  write_file_atomically(html, page);
  fmt::print("wrote {}\n", html.string());
  const auto write_images = [&](ImageFormat format) {
    for (const std::filesystem::path& image : write_chart_images(charts_for(results), format, folder))
      fmt::print("wrote {}\n", image.string());
  };
  if (flags.png) write_images(ImageFormat::kPng);
  if (flags.svg) write_images(ImageFormat::kSvg);
  return 0;
}

}  // namespace

Run declare_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  app.footer(
      "  firkin report                              firkin-out/results.json\n"
      "  firkin report run7/results.json --svg      and each chart beside the page\n");
  app.add_option("results", flags->results, "a results.json of any subcommand")->capture_default_str();
  app.add_option("--html", flags->html, "the page to write (default: report.html beside the results)");
  app.add_flag("--png", flags->png, "write every chart as a PNG file beside the page as well");
  app.add_flag("--svg", flags->svg, "write every chart as an SVG file beside the page as well");
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
