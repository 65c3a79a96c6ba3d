// firkin trace: what ran when in a few training steps, per strategy, as Chrome traces.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "bench/step_trace.h"
#include "command.h"
#include "firkin/base/file.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"
#include "language_model_job.h"
#include "rank_flags.h"
#include "report/report.h"
#include "results.h"
#include "rule_flags.h"
#include "step_matrix.h"
#include "trace/chrome_trace.h"

namespace firkin::cli {
namespace {

struct TraceFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;
  RuleFlags rule;
  std::vector<std::string> strategies = {"naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<double> caps_mib = {4};
  int warmup = 3;
  int steps = 3;
};

using SpansByRank = std::vector<std::vector<Span>>;

// "trace-naive.json", "trace-bucketed-4MiB.json"
std::string file_name(const Cell& cell) {
  return cell.cap_mib ? fmt::format("trace-{}-{}MiB.json", cell.strategy, *cell.cap_mib) : fmt::format("trace-{}.json", cell.strategy);
}

// One rank's figures: the medians of its steps, seconds.
nlohmann::json figures_json(const std::vector<Span>& spans) {
  std::vector<double> step_s, compute_s, communication_s, overlapped_s;
  for (const TracedStep& step : traced_steps(spans)) {
    step_s.push_back(seconds_of(step.period));
    compute_s.push_back(step.overlap.compute_s);
    communication_s.push_back(step.overlap.communication_s);
    overlapped_s.push_back(step.overlap.overlapped_s);
  }
  return {
      {"step_s", median(step_s)},
      {"compute_s", median(compute_s)},
      {"communication_s", median(communication_s)},
      {"overlapped_s", median(overlapped_s)},
      {"samples", {{"step_s", step_s}, {"compute_s", compute_s}, {"communication_s", communication_s}, {"overlapped_s", overlapped_s}}}};
}

// The last step: when it computed and when it communicated, in seconds since it began. Gaps too short to be seen are closed.
nlohmann::json timeline_json(const std::vector<Span>& spans) {
  constexpr int64_t kGapsPerStep = 500;  // shorter ones are closed
  const Period step = traced_steps(spans).back().period;
  const int64_t least_gap_ns = (step.end_ns - step.start_ns) / kGapsPerStep;
  const std::vector<Span> last = spans_between(spans, step.start_ns, step.end_ns);
  const auto since_start = [&step](int64_t time_ns) { return seconds_of({step.start_ns, time_ns}); };
  nlohmann::json timeline = nlohmann::json::array();
  for (const auto& [activity, name] : {std::pair{Activity::kOperator, "compute"}, {Activity::kCollective, "communication"}}) {
    for (const Period& period : busy_periods(last, activity, least_gap_ns)) {
      timeline.push_back({{"activity", name}, {"start_s", since_start(period.start_ns)}, {"end_s", since_start(period.end_ns)}});
    }
  }
  return timeline;
}

nlohmann::json trace_json(const Cell& cell, const SpansByRank& spans) {
  nlohmann::json json = {{"strategy", cell.strategy}, {"name", cell.setting.name}, {"file", file_name(cell)}};
  if (cell.cap_mib) json["cap_mib"] = *cell.cap_mib;
  for (const auto& rank : spans) json["ranks"].push_back(figures_json(rank));
  json["timeline"] = timeline_json(spans[0]);
  return json;
}

void print_traces(const nlohmann::json& traces) {
  fmt::print("{:<18} {:>9} {:>9} {:>13} {:>10} {:>11}\n", "strategy", "step", "compute", "communication", "overlapped", "exposed");
  for (const nlohmann::json& trace : traces) {
    const nlohmann::json& rank0 = trace["ranks"][0];
    const double communication_s = rank0["communication_s"];
    const double overlapped_s = rank0["overlapped_s"];
    const std::string overlapped = communication_s > 0 ? fmt::format("{:.0f} %", 100 * overlapped_s / communication_s) : "-";
    fmt::print("{:<18} {:>9} {:>9} {:>13} {:>10} {:>11}\n", trace["name"].get<std::string>(), format_seconds(rank0["step_s"]),
               format_seconds(rank0["compute_s"]), format_seconds(communication_s), overlapped,
               format_seconds(communication_s - overlapped_s));
  }
}

void run_rank(const TraceFlags& flags, const std::vector<Cell>& cells, const ProcessGroup& group) {
  Workload workload = make_job(flags.job, group, flags.common.seed);
  const std::filesystem::path out = flags.common.out;
  nlohmann::json json = results_head("trace", flags.common.seed);
  Progress progress("tracing", static_cast<int>(cells.size()), group.rank == 0);
  for (const Cell& cell : cells) {
    const SpansByRank spans = trace_steps(group, workload, cell.setting.options, {.warmup_steps = flags.warmup, .steps = flags.steps});
    if (group.rank != 0) continue;
    json["traces"].push_back(trace_json(cell, spans));
    write_file_atomically(out / file_name(cell), chrome_trace(spans).dump() + "\n");
    progress.advance(cell.setting.name);
  }
  if (group.rank != 0) return;
  json["environment"] = environment(group.size, flags.ranks.backend);
  json["model"] = describe_job(flags.job);
  write_file_atomically(out / "results.json", json.dump(1) + "\n");
  write_file_atomically(out / "trace.html", render_report(json));
  if (flags.common.json) {
    print_json(json);
  } else {
    print_traces(json["traces"]);
    fmt::print("\nwrote {}/: results.json, trace.html and, for ui.perfetto.dev, trace-*.json\n", out.string());
  }
}

}  // namespace

Run declare_trace(CLI::App& app) {
  auto flags = std::make_shared<TraceFlags>();
  app.footer(
      "Records a few steps per strategy: operators and collectives, on every rank.\n"
      "compute: at least one operator ran. communication: the transport had taken up at\n"
      "least one collective. overlapped: the part of that with an operator beside it;\n"
      "exposed: the rest. Rank 0, medians over steps, which recording makes slower: for\n"
      "times take firkin bench step.\n\n"
      "trace.html shows the last step of each strategy. trace-STRATEGY.json has every\n"
      "operator of every rank: drop it on https://ui.perfetto.dev (it stays on your\n"
      "machine) or load it in chrome://tracing.\n\n"
      "  firkin trace --ranks 2 --strategies naive,overlap\n"
      "  firkin trace --ranks 2 --strategies bucketed,torch --cap-mib 1,4,25\n");
  add_common_flags(app, flags->common);
  add_rank_flags(app, flags->ranks);
  add_job_flags(app, flags->job);
  app.add_option("--strategies", flags->strategies, "which")->delimiter(',')->capture_default_str();
  app.add_option("--cap-mib", flags->caps_mib, "caps of bucketed and torch, MiB")->delimiter(',')->capture_default_str();
  add_rule_flags(app, flags->rule);
  app.add_option("--warmup", flags->warmup, "steps before the recorded ones")->capture_default_str()->check(CLI::Range(1, 100000));
  app.add_option("--steps", flags->steps, "recorded steps")->capture_default_str()->check(CLI::Range(1, 1000));
  return [flags] {
    check_job_flags(flags->job);
    const std::vector<Cell> cells = make_cells(flags->strategies, flags->caps_mib, flags->rule);
    check_output_folder(flags->common.out, "--out");
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, cells, group); });
  };
}

}  // namespace firkin::cli
