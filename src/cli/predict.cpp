// firkin predict: T(b), the best uniform cap and the best plan, from tensors.csv and allreduce.csv.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/tensor_profile.h"
#include "predict_output.h"
#include "rule_flags.h"

namespace firkin::cli {
namespace {

struct PredictFlags {
  std::string tensors, allreduce;
  int64_t world = 0;  // 0: the only one in the table
  RuleFlags rule;
  std::vector<double> caps_mib;
  double overhead_us = 0;
  std::optional<double> copy_gbps;
  double compute_slowdown = 1;
  double comm_slowdown = 1;
  int64_t channels = 1;
  std::optional<double> largest_bucket_mib;
  bool sensitivity = false;
  std::string out;
  bool json = false;
};

SearchOptions search_options(const PredictFlags& flags) {
  constexpr double kMicrosecond = 1e-6;
  constexpr double kGiga = 1e9;
  SearchOptions search;
  search.simulation.channels = flags.channels;
  search.simulation.overhead_s = flags.overhead_us * kMicrosecond;
  search.simulation.compute_slowdown = flags.compute_slowdown;
  search.simulation.comm_slowdown = flags.comm_slowdown;
  if (flags.copy_gbps) {
    if (!(*flags.copy_gbps > 0)) throw InputError(fmt::format("--copy-gbps {}: expected more than 0", *flags.copy_gbps));
    search.simulation.copy_s_per_byte = 1 / (*flags.copy_gbps * kGiga);
  }
  check_options(search.simulation);
  if (flags.largest_bucket_mib) search.largest_bucket_bytes = bytes_from_mib(*flags.largest_bucket_mib, "--max-bucket-mib");
  return search;
}

// The caps asked for, or powers of two from 1/4 MiB until one holds everything.
std::vector<int64_t> caps_of(const PredictFlags& flags, int64_t total_bytes) {
  std::vector<int64_t> caps;
  for (const double mib : flags.caps_mib) caps.push_back(bytes_from_mib(mib, "--cap-mib"));
  if (!caps.empty()) return caps;
  caps.push_back(kMiB / 4);
  while (caps.back() < total_bytes) caps.push_back(2 * caps.back());
  return caps;
}

int64_t world_of(const PredictFlags& flags, const AllReduceTable& table) {
  const std::vector<int64_t> worlds = world_sizes(table);
  if (flags.world != 0) return flags.world;
  if (worlds.size() == 1) return worlds[0];
  throw InputError(fmt::format("{}: has several world sizes; expected --world with one of {}, or another to extrapolate to",
                               flags.allreduce, fmt::join(worlds, ", ")));
}

std::optional<AnalyticPrediction> analytic_of(const PredictResult& result, double total_bytes) {
  const AlphaBeta& fit = result.alpha_beta;
  if (fit.alpha_s <= 0 || fit.beta_s_per_byte <= 0 || result.profile.backward_s <= 0 || total_bytes <= 0) return std::nullopt;
  AnalyticPrediction analytic;
  analytic.workload = {.total_bytes = total_bytes,
                       .backward_s = result.profile.backward_s,
                       .overhead_s = fit.alpha_s,
                       .bandwidth_bytes_s = 1 / fit.beta_s_per_byte};
  analytic.balanced = best_balanced_buckets(analytic.workload);
  analytic.even = best_even_buckets(analytic.workload);
  if (total_bytes * fit.beta_s_per_byte >= result.profile.backward_s) analytic.growing = best_growing_buckets(analytic.workload);
  return analytic;
}

Extrapolation extrapolate(const ScalingModel& model, const PredictResult& result, const std::vector<int64_t>& caps) {
  Extrapolation extrapolation{.fitted_worlds = model.fitted_worlds(), .forms = {}, .minimax = {}};
  std::vector<CommCosts> all_costs;
  for (const FormFit& fit : model.fits()) {
    const CommCosts costs = model.costs(fit.form, result.world_size);
    extrapolation.forms.push_back({.form = fit.form,
                                   .median_relative_error = fit.median_relative_error,
                                   .curve = sweep_caps(result.profile, costs, result.rule, caps, result.search.simulation),
                                   .best = find_best_uniform_cap(result.profile, costs, result.rule, result.search)});
    all_costs.push_back(costs);
  }
  extrapolation.minimax = find_minimax_regret_cap(result.profile, all_costs, result.rule, result.search);
  return extrapolation;
}

// Everything that follows from the profile and the two curves.
void predict_with(const CommCosts& costs, const std::vector<int64_t>& caps, PredictResult& result) {
  const TensorProfile& profile = result.profile;
  result.alpha_beta = fit_alpha_beta(costs.isolated.points());
  result.curve_quality = leave_one_out_of_curve(costs.isolated.points());
  result.alpha_beta_quality = leave_one_out_of_alpha_beta(costs.isolated.points());
  result.curve = sweep_caps(profile, costs, result.rule, caps, result.search.simulation);
  result.best_uniform = find_best_uniform_cap(profile, costs, result.rule, result.search);
  result.best_plan = find_optimal_plan(profile, costs, result.search);
  if (result.best_plan.timeline.end_s > result.best_uniform.timeline.end_s && !result.best_plan.exact) {
    result.best_plan = {result.best_uniform.plan, result.best_uniform.timeline, false};
  }
  result.pytorch = pytorch_caps(result.best_plan.plan, profile.bytes);
  const double best_s = result.best_plan.timeline.end_s;
  if (!(best_s > 0)) throw InputError("the tensors take no time to compute and to send; expected some ready_s or bytes above 0");
  result.baselines = simulate_baselines(profile, costs, result.search.simulation, best_s);
}

PredictResult predict(const PredictFlags& flags) {
  PredictResult result;
  result.rule = cap_options(flags.rule);
  result.rule_name = flags.rule.rule;
  result.search = search_options(flags);
  if (flags.world < 0) throw InputError(fmt::format("--world {}: expected at least 1", flags.world));
  result.profile = read_tensors_csv(flags.tensors);
  const AllReduceTable table = read_allreduce_csv(flags.allreduce);
  const int64_t total = std::accumulate(result.profile.bytes.begin(), result.profile.bytes.end(), int64_t{0});
  const std::vector<int64_t> caps = caps_of(flags, total);

  result.world_size = world_of(flags, table);
  const std::vector<int64_t> worlds = world_sizes(table);
  const bool measured = std::ranges::binary_search(worlds, result.world_size);
  result.gap_measured =
      std::ranges::any_of(table, [&](const AllReduceRow& row) { return row.gap_s && (!measured || row.world_size == result.world_size); });
  std::optional<ScalingModel> scaling;
  if (!measured) scaling.emplace(table);
  const CommCosts costs = measured ? comm_costs(table, result.world_size) : scaling->median_costs(result.world_size);
  predict_with(costs, caps, result);
  result.analytic = analytic_of(result, static_cast<double>(total));
  if (scaling) result.extrapolation = extrapolate(*scaling, result, caps);
  if (flags.sensitivity) {
    result.sensitivity = {sensitivity_table(result.profile, costs, result.rule, result.search),
                          elasticities(result.profile, costs, result.rule, result.search)};
  }
  return result;
}

int run(const PredictFlags& flags) {
  if (!flags.out.empty()) check_output_folder(flags.out, "--out");
  const PredictResult result = predict(flags);
  nlohmann::json json = predict_json(result);
  json["schema"] = "firkin.predict/1";
  json["command_line"] = command_line();
  if (!flags.out.empty()) write_file_atomically(std::filesystem::path(flags.out) / "predict.json", json.dump(2) + "\n");
  if (flags.json) {
    print_json(json);
  } else {
    fmt::print("{}", predict_table(result));
  }
  return 0;
}

}  // namespace

Run declare_predict(CLI::App& app) {
  auto flags = std::make_shared<PredictFlags>();
  app.footer(
      "  firkin predict --tensors firkin-out/tensors.csv \\\n"
      "    --allreduce firkin-out/allreduce.csv\n"
      "  firkin predict --tensors t.csv --allreduce a.csv --world 1024 --json\n"
      "  firkin predict --tensors t.csv --allreduce a.csv --cap-mib 1,5,25,100\n");
  app.add_option("--tensors", flags->tensors, "tensors.csv: name,bytes,ready_s in gradient-ready order")->required();
  app.add_option("--allreduce", flags->allreduce, "allreduce.csv: bytes,world_size,median_s,...")->required();
  app.add_option("--world", flags->world, "ranks; a world that was not measured is extrapolated to");
  add_rule_flags(app, flags->rule);
  app.add_option("--cap-mib", flags->caps_mib, "caps of the curve, MiB (default: powers of two)")->delimiter(',');
  app.add_option("--overhead-us", flags->overhead_us, "launch of a call, on the computing thread, us")->capture_default_str();
  app.add_option("--copy-gbps", flags->copy_gbps, "copy into buckets, GB/s (default: costs nothing)");
  app.add_option("--compute-slowdown", flags->compute_slowdown, "of backward while communicating, at least 1")->capture_default_str();
  app.add_option("--comm-slowdown", flags->comm_slowdown, "of all-reduces while computing, at least 1")->capture_default_str();
  app.add_option("--channels", flags->channels, "all-reduces in flight at once")->capture_default_str();
  app.add_option("--max-bucket-mib", flags->largest_bucket_mib, "limit for buckets of several tensors, MiB");
  app.add_flag("--sensitivity", flags->sensitivity, "how the answer moves from 1/8 to 8 times each input");
  app.add_option("--out", flags->out, "folder for predict.json (default: not written)");
  app.add_flag("--json", flags->json, "print the result as JSON on standard output");
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
