// results.json as a file: what is wrong in it is said with its line.
#include <fmt/format.h>

#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "json_fields.h"
#include "report/report.h"
#include "results.h"

namespace firkin {
namespace {

constexpr const char* kExpected = "the results.json of a subcommand";

}  // namespace

nlohmann::json parse_results_json(std::string_view text, const std::string& file) {
  nlohmann::json document = parse_json(text, file, kExpected);
  try {
    parse_results(document);
  } catch (const FieldError& error) {
    throw InputError(fmt::format("{}:{}: {}", file, json_line_of(text, error.path()), error.what()));
  }
  return document;
}

nlohmann::json read_results_json(const std::filesystem::path& path) {
  return parse_results_json(read_text_file(path, kLongestJsonLine, kExpected), path.string());
}

}  // namespace firkin
