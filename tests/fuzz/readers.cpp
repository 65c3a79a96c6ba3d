#include "readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/measurements.h"
#include "firkin/plan/timeline.h"
#include "import/import.h"
#include "import/nccl_inspector.h"
#include "import/profiler_trace.h"
#include "model/transformer_config.h"
#include "report/report.h"
#include "results/results.h"

namespace firkin::fuzz {
namespace {

const std::string kFile = "input";

void require(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(fmt::format("an accepted input breaks a promise: {}", promise));
}

void read_tensors(std::string_view text) {
  const TensorProfile profile = parse_tensors_csv(text, kFile);
  check_profile(profile);
  const BucketPlan plan = assign_buckets(profile.bytes, {});
  check_plan(plan, static_cast<int64_t>(profile.bytes.size()));
  const CostCurve curve({{1 << 10, 1e-4}, {1 << 20, 2e-3}});
  require(std::isfinite(simulate(profile, plan, {curve, curve}).end_s), "its simulation ends");
}

void check_costs(const CommCosts& costs) {
  for (const double bytes : {0.0, 1.0, 1e3, 1e6, 1e9, 1e12}) {
    for (const double seconds : {costs.isolated(bytes), costs.gap(bytes)}) {
      require(std::isfinite(seconds) && seconds >= 0, "every size has a time");
    }
  }
}

void check_table(const AllReduceTable& table) {
  require(!table.empty(), "it holds measurements");
  for (const int64_t world : world_sizes(table)) {
    const CommCosts costs = comm_costs(table, world);
    check_costs(costs);
    const AlphaBeta fit = fit_alpha_beta(costs.isolated.points());
    require(std::isfinite(fit.alpha_s) && std::isfinite(fit.beta_s_per_byte), "a line can be fitted");
  }
}

// The other of the two files, well formed.
const std::string& published(const char* name) {
  static const std::string sizes = read_file(FIRKIN_SOURCE_DIR "/data/cmsc828g/layer-sizes-gpt2_large-bs4.csv");
  static const std::string times = read_file(FIRKIN_SOURCE_DIR "/data/cmsc828g/layer-times-gpt2_large-bs4.csv");
  return std::string_view(name) == "sizes" ? sizes : times;
}

void read_allreduce_times(std::string_view text) {
  recognize_import(text, kFile);
  check_table(parse_allreduce_times(text, kFile, {.world_size = 8, .collective = "all_reduce"}).table);
}

void read_log(std::string_view text) {
  recognize_import(text, kFile);
  for (const bool in_place : {false, true}) {
    check_table(parse_benchmark_log(text, kFile, {.world_size = 8, .collective = "all_reduce", .in_place = in_place}).table);
  }
}

void read_trace(std::string_view text) {
  std::vector<TraceSteps> ranks;
  for (TraceEvents& events : parse_trace_events(text, kFile)) ranks.push_back(find_trace_steps(std::move(events), {}));
  const ReadTrace read = combine_traces(std::move(ranks));
  check_profile(read.profile);
  tensors_csv(read.profile);
  if (!read.table.empty()) check_table(read.table);
  Results results;
  results.run = begin_head("import");
  results.traced = read.run;
  require(results_text(parse_results(results_text(results), kFile)) == results_text(results), "what is written is read back");
  render_report(results);
}

void read_results(std::string_view text) {
  const Results results = parse_results(text, kFile);
  render_report(results);
  results_in_text(results);
  require(results_text(parse_results(results_text(results), kFile)) == results_text(results), "what is written is read back");
}

// Whether the message starts with "input: ", or with "input:LINE: " and there is such a line.
bool names_its_place(std::string_view message, std::string_view text) {
  if (!message.starts_with(kFile + ":")) return false;
  message.remove_prefix(kFile.size() + 1);
  if (message.starts_with(" ")) return true;
  int64_t line = 0;
  const auto [end, error] = std::from_chars(message.data(), message.data() + message.size(), line);
  message.remove_prefix(static_cast<size_t>(end - message.data()));
  return error == std::errc{} && message.starts_with(": ") && line >= 1 && line <= 1 + std::count(text.begin(), text.end(), '\n');
}

}  // namespace

std::span<const Reader> readers() {
  static constexpr std::array kReaders = {
      Reader{"tensors", read_tensors},
      Reader{"allreduce", [](auto text) { check_table(parse_allreduce_csv(text, kFile)); }},
      Reader{"cmsc828g_sizes",
             [](auto text) { check_profile(*parse_cmsc828g_profile(text, kFile, published("times"), "times.csv").profile); }},
      Reader{"cmsc828g_times",
             [](auto text) { check_profile(*parse_cmsc828g_profile(published("sizes"), "sizes.csv", text, kFile).profile); }},
      Reader{"allreduce_times", read_allreduce_times},
      Reader{"log", read_log},
      Reader{"trace", read_trace},
      Reader{"inspector", [](auto text) { check_table(parse_nccl_inspector(text, kFile).table); }},
      Reader{"results", read_results},
      Reader{"model", [](auto text) { check_config(parse_model_json(text, kFile), "config"); }},
  };
  return kReaders;
}

const Reader& find_reader(std::string_view name) {
  const auto found = std::ranges::find(readers(), name, &Reader::name);
  if (found == readers().end()) throw std::logic_error(fmt::format("no reader '{}'", name));
  return *found;
}

Verdict run_reader(const Reader& reader, std::string_view text) {
  try {
    reader.read(text);
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    if (names_its_place(message, text)) return Verdict::kRejected;
    throw std::logic_error(fmt::format("a message without its place: {}", message));
  }
  return Verdict::kAccepted;
}

}  // namespace firkin::fuzz
