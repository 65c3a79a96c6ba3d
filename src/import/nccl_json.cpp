// The JSON files of nccl-tests and rccl-tests.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "firkin/base/json_text.h"
#include "nccl_tests.h"

namespace firkin {
namespace {

constexpr const char* kExpectedOutput = "what nccl-tests prints, or writes with -J";
constexpr std::string_view kProgram = "all_reduce_perf";

double number_of(const nlohmann::json& object, const char* key, const Where& where) {
  if (!object.contains(key) || !object[key].is_number()) fail(where, fmt::format("{} is missing or no number; expected a number", key));
  return object[key].get<double>();
}

std::string text_of(const nlohmann::json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

int64_t whole_number_of(const nlohmann::json& row, const char* key, const Where& where) {
  if (!row.is_object() || !row.contains(key) || !row[key].is_number_integer()) fail(where, fmt::format("no whole number '{}'", key));
  if (row[key].is_number_unsigned() && row[key].get<uint64_t>() > INT64_MAX) fail(where, fmt::format("{} does not fit into 64 bits", key));
  return row[key].get<int64_t>();
}

NcclResult result_of(const nlohmann::json& row, bool in_place, const Where& where) {
  const char* side = in_place ? "in_place" : "out_of_place";
  const int64_t bytes = whole_number_of(row, "size", where);
  if (!row.contains(side) || !row[side].is_object()) fail(where, fmt::format("no object '{}'", side));
  const nlohmann::json& values = row[side];
  if (values.contains("cpu_time")) fail(where, "the time is CPU time (-C); expected a run without that option");
  const std::string padded_root = text_of(row, "root");
  const std::vector<std::string_view> root = words_of(padded_root);
  NcclResult result{.where = where,
                    .program = std::string(kAllReduceProgram),
                    .bytes = bytes,
                    .type = text_of(row, "type"),
                    .operation = row.contains("redop") ? text_of(row, "redop") : "sum",
                    .root = root.empty() ? -1 : tagged_integer(root[0]).value_or(-1),
                    .time_us = number_of(values, "time", where),
                    .algorithm_bandwidth = number_of(values, "alg_bw", where),
                    .bus_bandwidth = number_of(values, "bus_bw", where)};
  if (values.contains("nwrong") && !values["nwrong"].is_null()) result.wrong = number_of(values, "nwrong", where);
  return result;
}

char first_character_of(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  return first == std::string_view::npos ? '\0' : text[first];
}

}  // namespace

BenchmarkRows rows_of_json(std::string_view text, const std::string& file, const ImportOptions& options) {
  const nlohmann::json json = parse_json(text, file, kExpectedOutput);
  const auto at = [text, file](const std::string& path) -> Where {
    return [=] { return fmt::format("{}:{}", file, json_line_of(text, path)); };
  };
  if (json.contains("args") && json["args"].is_array() && !json["args"].empty() && json["args"][0].is_string()) {
    const auto program = json["args"][0].get<std::string>();
    if (program.find(kProgram) == std::string::npos)
      fail(at("args[0]"), fmt::format("args[0] is '{}'; expected {}", shown(program), kProgram));
  }
  if (!json.contains("results") || !json["results"].is_array()) {
    fail(at("results"), fmt::format("no array 'results'; expected {}", kExpectedOutput));
  }
  BenchmarkRows rows;
  for (size_t i = 0; i < json["results"].size(); ++i) {
    const std::string path = fmt::format("results[{}]", i);
    const Where where = [at, path] { return fmt::format("{}: {}", at(path)(), path); };
    add_result(rows, result_of(json["results"][i], options.in_place, where), options);
  }
  return rows;
}

BenchmarkRows rows_of_records(std::string_view text, const std::string& file, const ImportOptions& options) {
  const nlohmann::json json = parse_json(text, file, kExpectedOutput);
  BenchmarkRows rows;
  for (size_t i = 0; i < json.size(); ++i) {
    const Where where = [text, file, i] { return fmt::format("{}:{}", file, json_line_of(text, fmt::format("[{}]", i))); };
    const nlohmann::json& row = json[i];
    if (!row.is_object()) fail(where, "a value that is no object; expected a record of rccl-tests");
    if ((number_of(row, "inPlace", where) != 0) != options.in_place) continue;
    const std::string wrong = text_of(row, "wrong");
    add_result(rows,
               {.where = where,
                .program = text_of(row, "name") == "AllReduce" ? std::string(kAllReduceProgram) : shown(text_of(row, "name")),
                .bytes = whole_number_of(row, "size", where),
                .type = text_of(row, "type"),
                .operation = text_of(row, "redop"),
                .time_us = number_of(row, "time", where),
                .algorithm_bandwidth = number_of(row, "algBw", where),
                .bus_bandwidth = number_of(row, "busBw", where),
                .wrong = number_in(wrong).value_or(0),
                .world_size = whole_number_of(row, "ranks", where)},
               options);
  }
  return rows;
}

bool begins_json_object(std::string_view text) {
  return first_character_of(text) == '{';
}

bool begins_json_array(std::string_view text) {  // of objects: a log may begin with a tag, [1,0]<stdout>:
  return first_character_of(text) == '[' && first_character_of(text.substr(text.find('[') + 1)) == '{';
}

}  // namespace firkin
