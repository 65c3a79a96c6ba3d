// firkin bench step: training steps under strategies and caps.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/bench/step_bench.h"
#include "firkin/bench/synthetic_workload.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"
#include "language_model_job.h"
#include "rank_flags.h"
#include "results.h"
#include "rule_flags.h"

namespace firkin::cli {
namespace {

struct StepFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;
  RuleFlags rule;
  std::vector<std::string> strategies = {"none", "naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<double> caps_mib = {1, 10, 100, 1000};
  int64_t synthetic_tensors = 0;
  int64_t synthetic_bytes = 10240;
  int blocks = 20;
  int warmup = 1;
  int steps = 2;
};

// One line of the table.
struct Cell {
  std::string strategy;
  std::optional<double> cap_mib;
  StepSetting setting;
};

bool takes_cap(const Strategy& strategy) {
  return strategy.grouping == Grouping::kCap;
}

// `none` is always there, and first: the others are compared with it.
std::vector<Cell> make_cells(const StepFlags& flags) {
  std::vector<std::string> names = flags.strategies;
  std::erase(names, "none");
  names.insert(names.begin(), "none");
  std::vector<Cell> cells;
  for (const std::string& name : names) {
    DataParallelOptions options;
    options.strategy = find_strategy(name);
    options.broadcast_parameters = false;
    if (options.strategy.grouping == Grouping::kPlan) throw InputError("--strategies planned: expected a strategy that needs no plan");
    options.cap = cap_options(flags.rule);
    if (!takes_cap(options.strategy)) {
      cells.push_back({name, std::nullopt, {name, options}});
      continue;
    }
    for (const double mib : flags.caps_mib) {
      options.cap.cap_bytes = bytes_from_mib(mib, "--cap-mib");
      cells.push_back({name, mib, {fmt::format("{} {} MiB", name, mib), options}});
    }
  }
  return cells;
}

nlohmann::json interval_json(const Interval& interval) {
  return {{"low", interval.low}, {"high", interval.high}};
}

// The figures of every cell; those of `bucketed` also as ratio to `torch` under the same cap.
nlohmann::json cells_json(const std::vector<Cell>& cells, const StepBenchResult& result, size_t tensors, uint64_t seed) {
  const double none_s = median(result.step_s[0]);
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < cells.size(); ++i) {
    const PairedRatio to_none = paired_ratio(result.step_s[i], result.step_s[0], seed);
    const double step_s = median(result.step_s[i]);
    const double comm_s = median(result.comm_s[i]);
    const double exposed_s = none_s * (to_none.ratio - 1);
    nlohmann::json row = {{"strategy", cells[i].strategy}, {"buckets", result.buckets[i]},
                          {"measured_s", step_s},          {"measured_ci_s", interval_json(bootstrap_median(result.step_s[i], seed))},
                          {"exposed_s", exposed_s},        {"comm_s", comm_s},
                          {"comm_share", comm_s / step_s}, {"per_tensor_us", exposed_s / static_cast<double>(tensors) * 1e6}};
    if (cells[i].cap_mib) row["cap_mib"] = *cells[i].cap_mib;
    const auto peer =
        std::ranges::find_if(cells, [&](const Cell& cell) { return cell.strategy == "torch" && cell.cap_mib == cells[i].cap_mib; });
    if (cells[i].strategy == "bucketed" && peer != cells.end()) {
      const PairedRatio to_torch = paired_ratio(result.step_s[i], result.step_s[static_cast<size_t>(peer - cells.begin())], seed);
      row["ratio_to_torch"] = to_torch.ratio;
      row["ratio_to_torch_ci"] = interval_json(to_torch.interval);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void print_table(const nlohmann::json& cells) {
  fmt::print("{:<9} {:>6} {:>5} {:>8} {:>17} {:>8} {:>8}  {}\n", "strategy", "MiB", "bkts", "step", "95 % interval", "exposed", "after bw",
             "x torch");
  for (const nlohmann::json& cell : cells) {
    const std::string interval =
        fmt::format("{} - {}", format_seconds(cell["measured_ci_s"]["low"]), format_seconds(cell["measured_ci_s"]["high"]));
    std::string ratio;
    if (cell.contains("ratio_to_torch")) {
      ratio = fmt::format("{:.3f} [{:.3f}, {:.3f}]", cell["ratio_to_torch"].get<double>(), cell["ratio_to_torch_ci"]["low"].get<double>(),
                          cell["ratio_to_torch_ci"]["high"].get<double>());
    }
    const std::string cap = cell.contains("cap_mib") ? fmt::format("{:g}", cell["cap_mib"].get<double>()) : "-";
    fmt::print("{:<9} {:>6} {:>5} {:>8} {:>17} {:>8} {:>8}  {}\n", cell["strategy"].get<std::string>(), cap, cell["buckets"].get<int64_t>(),
               format_seconds(cell["measured_s"]), interval, format_seconds(cell["exposed_s"]), format_seconds(cell["comm_s"]), ratio);
  }
}

LanguageModelJob make_workload(const StepFlags& flags, const ProcessGroup& group) {
  if (flags.synthetic_tensors == 0) return make_job(flags.job, group, flags.common.seed);
  LanguageModelJob job;
  job.workload = make_synthetic_workload({.count = flags.synthetic_tensors, .bytes = flags.synthetic_bytes});
  job.description = {{"name", fmt::format("{} tensors of {} bytes", flags.synthetic_tensors, flags.synthetic_bytes)},
                     {"tensors", flags.synthetic_tensors},
                     {"gradient_bytes", flags.synthetic_tensors * flags.synthetic_bytes}};
  return job;
}

void run_rank(const StepFlags& flags, const std::vector<Cell>& cells, const ProcessGroup& group) {
  LanguageModelJob job = make_workload(flags, group);
  std::vector<StepSetting> settings;
  for (const Cell& cell : cells) settings.push_back(cell.setting);
  Progress progress("measuring steps", flags.blocks * static_cast<int>(cells.size()), group.rank == 0);
  const StepBenchResult result = measure_steps(group, job.workload, settings,
                                               {.blocks = flags.blocks,
                                                .warmup_steps = flags.warmup,
                                                .steps_per_block = flags.steps,
                                                .seed = flags.common.seed,
                                                .on_progress = [&progress](const std::string& done) { progress.advance(done); }});
  if (group.rank != 0) return;
  nlohmann::json json = results_head("bench-step", flags.common.seed);
  json["environment"] = environment(group.size, flags.ranks.backend);
  json["model"] = job.description;
  json["strategies"] = cells_json(cells, result, trainable_parameters(*job.workload.module).size(), flags.common.seed);
  json["samples"] = {{"step_s", result.step_s}, {"comm_s", result.comm_s}, {"raw_step_s_by_rank", result.raw_step_s}};
  write_file_atomically(std::filesystem::path(flags.common.out) / "results.json", json.dump(1) + "\n");
  if (flags.common.json) {
    print_json(json);
  } else {
    print_table(json["strategies"]);
    fmt::print("\nwrote {}/results.json\n", flags.common.out);
  }
}

}  // namespace

Run declare_bench_step(CLI::App& app) {
  auto flags = std::make_shared<StepFlags>();
  app.footer(
      "exposed: step less the step without communication, paired. after bw: from the end\n"
      "of backward to the last gradient. x torch: paired ratio of the step to that of\n"
      "c10d::Reducer under the same cap, with its 95 % interval.\n\n"
      "  firkin bench step --ranks 2 --cap-mib 1,4,25 --strategies bucketed,torch\n"
      "  firkin bench step --ranks 2 --synthetic-tensors 500 --synthetic-bytes 10240\n");
  add_common_flags(app, flags->common);
  add_rank_flags(app, flags->ranks);
  add_job_flags(app, flags->job);
  add_rule_flags(app, flags->rule);
  app.add_option("--strategies", flags->strategies, "which; `none` is always measured")->delimiter(',')->capture_default_str();
  app.add_option("--cap-mib", flags->caps_mib, "caps of bucketed and torch, MiB")->delimiter(',')->capture_default_str();
  app.add_option("--synthetic-tensors", flags->synthetic_tensors, "that many equal tensors instead of a model")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
  app.add_option("--synthetic-bytes", flags->synthetic_bytes, "bytes of each")->capture_default_str();
  app.add_option("--blocks", flags->blocks, "blocks; each runs every setting once")->capture_default_str()->check(CLI::Range(4, 100000));
  app.add_option("--warmup", flags->warmup, "steps after each switch of setting")->capture_default_str()->check(CLI::Range(1, 100000));
  app.add_option("--steps", flags->steps, "timed steps per block and setting")->capture_default_str()->check(CLI::Range(1, 100000));
  return [flags] {
    const std::vector<Cell> cells = make_cells(*flags);
    if (flags->synthetic_tensors > 0) {
      make_synthetic_workload({.count = 1, .bytes = flags->synthetic_bytes});
    } else {
      check_job_flags(flags->job);
    }
    check_output_folder(flags->common.out, "--out");
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, cells, group); });
  };
}

}  // namespace firkin::cli
