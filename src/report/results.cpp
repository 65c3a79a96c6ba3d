#include "results.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "firkin/base/units.h"
#include "json_fields.h"

namespace firkin {
namespace {

using nlohmann::json;

// Unbounded intervals (too few samples) have a null end: nothing to show.
std::optional<Interval> read_interval(const JsonFields& parent, const std::string& name) {
  const auto fields = parent.maybe_object(name);
  if (!fields) return std::nullopt;
  if (!fields->whole().contains("low")) fields->number("low");
  if (!fields->whole().contains("high")) fields->number("high");
  const auto low = fields->maybe_number("low");
  const auto high = fields->maybe_number("high");
  if (!low || !high) return std::nullopt;
  if (*low > *high) fields->fail("low", fmt::format("{} is above high, {}", *low, *high), "low <= high");
  return Interval{*low, *high};
}

CurveRow read_curve_row(const JsonFields& fields) {
  CurveRow row;
  row.cap_mib = fields.positive("cap_mib");
  row.buckets = fields.maybe_integer("buckets");
  row.predicted_s = fields.maybe_positive("predicted_s");
  row.measured_s = fields.maybe_positive("measured_s");
  row.measured_ci_s = read_interval(fields, "measured_ci_s");
  row.error = fields.maybe_number("error");
  return row;
}

std::vector<CurveRow> read_curve(const std::vector<JsonFields>& list, bool answers) {
  std::vector<CurveRow> rows;
  for (const JsonFields& fields : list) {
    if (answers) {
      fields.positive("predicted_s");
      fields.positive("measured_s");
    }
    rows.push_back(read_curve_row(fields));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const CurveRow& a, const CurveRow& b) { return a.cap_mib < b.cap_mib; });
  return rows;
}

ChunksRow read_chunks(const JsonFields& fields) {
  ChunksRow row;
  row.chunk_bytes = fields.integer("chunk_bytes");
  row.calls = fields.integer("calls");
  row.total_s = fields.positive("total_s");
  row.total_ci_s = read_interval(fields, "total_ci_s");
  if (row.chunk_bytes < 1) fields.fail("chunk_bytes", fmt::format("{}", row.chunk_bytes), "a positive number of bytes");
  return row;
}

TraceRow read_trace(const JsonFields& fields) {
  TraceRow row{.name = fields.text("name"), .timeline = {}};
  for (const JsonFields& period : fields.objects("timeline")) {
    row.timeline.push_back({period.text("activity"), period.number("start_s"), period.positive("end_s")});
    const double start_s = row.timeline.back().start_s;
    if (start_s < 0 || start_s > row.timeline.back().end_s) period.fail("start_s", fmt::format("{}", start_s), "0 or more, at most end_s");
  }
  return row;
}

StrategyRow read_strategy(const JsonFields& fields) {
  StrategyRow row;
  row.strategy = fields.text("strategy");
  row.buckets = fields.maybe_integer("buckets");
  row.measured_s = fields.positive("measured_s");
  row.measured_ci_s = read_interval(fields, "measured_ci_s");
  row.predicted_s = fields.maybe_positive("predicted_s");
  row.exposed_s = fields.maybe_number("exposed_s");
  row.comm_s = fields.maybe_number("comm_s");
  return row;
}

// check_profile's rules, at the place where they are broken.
void check_last_tensor(const TensorProfile& profile, bool new_name, const JsonFields& tensor) {
  if (!new_name) tensor.fail("name", fmt::format("\"{}\" is there twice", profile.names.back()), "distinct names");
  const double ready = profile.ready_s.back();
  if (profile.bytes.back() < 0) tensor.fail("bytes", fmt::format("{}", profile.bytes.back()), "a number of bytes");
  if (ready < 0) tensor.fail("ready_s", fmt::format("{}", ready), "seconds, at least 0");
  const size_t before = profile.ready_s.size() - 1;
  if (before > 0 && ready < profile.ready_s[before - 1]) {
    tensor.fail("ready_s", fmt::format("{} after {}", ready, profile.ready_s[before - 1]), "gradient-ready order");
  }
}

TensorProfile read_profile(const JsonFields& fields) {
  TensorProfile profile;
  profile.backward_s = fields.positive("backward_s");
  std::set<std::string> seen;
  for (const JsonFields& tensor : fields.objects("tensors")) {
    profile.names.push_back(tensor.text("name"));
    profile.bytes.push_back(tensor.integer("bytes"));
    profile.ready_s.push_back(tensor.number("ready_s"));
    check_last_tensor(profile, seen.insert(profile.names.back()).second, tensor);
  }
  return profile;
}

AllReduceTable read_allreduce(const std::vector<JsonFields>& list) {
  AllReduceTable table;
  for (const JsonFields& fields : list) {
    AllReduceRow row;
    row.bytes = fields.integer("bytes");
    if (row.bytes <= 0) fields.fail("bytes", fmt::format("{}", row.bytes), "a positive number of bytes");
    row.world_size = fields.integer("world_size");
    row.median_s = fields.positive("median_s");
    row.gap_s = fields.maybe_positive("gap_s");
    row.mean_s = fields.maybe_positive("mean_s");
    row.stdev_s = fields.maybe_number("stdev_s");
    row.min_s = fields.maybe_positive("min_s");
    row.max_s = fields.maybe_positive("max_s");
    row.samples = fields.maybe_integer("samples");
    table.push_back(row);
  }
  std::stable_sort(table.begin(), table.end(), [](const AllReduceRow& a, const AllReduceRow& b) {
    return std::pair(a.world_size, a.bytes) < std::pair(b.world_size, b.bytes);
  });
  return table;
}

AlphaBeta read_alpha_beta(const JsonFields& fields) {
  return {fields.number("alpha_s"), fields.number("beta_s_per_byte"), fields.number("median_relative_error")};
}

TuneAnswer read_answer(const JsonFields& fields) {
  TuneAnswer answer;
  answer.best_predicted = read_curve_row(fields.object("best_predicted"));
  answer.best_measured = read_curve_row(fields.object("best_measured"));
  fields.object("best_predicted").positive("predicted_s");
  fields.object("best_measured").positive("measured_s");
  answer.indifference_set = fields.maybe_positives("indifference_set");
  if (answer.indifference_set.empty()) fields.fail("indifference_set", "missing or empty", "an array of caps in MiB");
  std::sort(answer.indifference_set.begin(), answer.indifference_set.end());
  answer.regret = fields.number("regret");
  answer.regret_ci = read_interval(fields, "regret_ci");
  return answer;
}

// "gradient_bytes" -> "gradient size", "threads_per_rank" -> "threads per rank"
std::string readable_name(std::string name) {
  constexpr std::string_view kBytes = "_bytes";
  if (name.ends_with(kBytes)) name.replace(name.size() - kBytes.size(), kBytes.size(), " size");
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// 4951296 -> "4,951,296"
std::string grouped(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

Facts read_facts(const std::optional<JsonFields>& fields) {
  Facts facts;
  if (!fields) return facts;
  for (const auto& [name, value] : fields->whole().items()) {
    if (value.is_string()) facts.emplace_back(readable_name(name), value.get<std::string>());
    if (value.is_boolean()) facts.emplace_back(readable_name(name), value.get<bool>() ? "yes" : "no");
    if (value.is_number_float()) facts.emplace_back(readable_name(name), fmt::format("{:.4g}", value.get<double>()));
    if (!value.is_number_integer()) continue;
    const auto number = value.get<int64_t>();
    facts.emplace_back(readable_name(name), name.ends_with("_bytes") ? format_bytes(number) : grouped(number));
  }
  return facts;
}

}  // namespace

Results parse_results(const json& document) {
  constexpr std::string_view kSchema = "firkin.results/";
  const JsonFields fields(document, "");
  const std::string schema = fields.text("schema");
  if (!schema.starts_with(kSchema)) fields.fail("schema", fmt::format("\"{}\"", schema), fmt::format("\"{}1\"", kSchema));

  Results results;
  results.command = fields.text("command");
  const bool answers = results.command == "tune";
  results.command_line = fields.maybe_texts("command_line");
  results.started = fields.maybe_text("started").value_or("");
  results.environment = read_facts(fields.maybe_object("environment"));
  results.model = read_facts(fields.maybe_object("model"));
  if (const auto seed = fields.maybe_integer("seed")) results.environment.emplace_back("seed", fmt::format("{}", *seed));
  if (const auto profile = fields.maybe_object("profile")) {
    results.profile = read_profile(*profile);
    results.hook_perturbation = profile->maybe_number("hook_perturbation");
  }
  results.allreduce = read_allreduce(fields.maybe_objects("allreduce"));
  if (const auto fit = fields.maybe_object("alpha_beta")) results.alpha_beta = read_alpha_beta(*fit);
  for (const JsonFields& row : fields.maybe_objects("chunks")) results.chunks.push_back(read_chunks(row));
  for (const JsonFields& row : fields.maybe_objects("traces")) results.traces.push_back(read_trace(row));
  results.curve = read_curve(answers ? fields.objects("curve") : fields.maybe_objects("curve"), answers);
  results.dense_curve = read_curve(fields.maybe_objects("dense_curve"), false);
  for (const JsonFields& row : answers ? fields.objects("strategies") : fields.maybe_objects("strategies")) {
    results.strategies.push_back(read_strategy(row));
  }
  if (answers) results.answer = read_answer(fields);
  if (const auto calibration = fields.maybe_object("calibration")) results.warning = calibration->maybe_text("warning").value_or("");
  return results;
}

}  // namespace firkin
