#include "step_matrix.h"

#include <fmt/format.h>

#include <filesystem>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "firkin/comm/rank_info.h"
#include "workload/synthetic_workload.h"

namespace firkin::cli {
namespace {

Configuration synthetic_configuration(const StepFlags& flags) {
  make_synthetic_workload({.count = 1, .bytes = flags.synthetic_bytes});  // checks the bytes
  return {.job = std::nullopt,
          .description = {{"name", fmt::format("{} tensors of {} bytes", flags.synthetic_tensors, flags.synthetic_bytes)},
                          {"tensors", flags.synthetic_tensors},
                          {"dtype", "Float"},
                          {"gradient_bytes", flags.synthetic_tensors * flags.synthetic_bytes}}};
}

template <typename T>
void check_not_empty(const char* flag, const std::vector<T>& values) {
  if (values.empty()) throw InputError(fmt::format("{}: expected at least one value", flag));
}

}  // namespace

std::vector<Cell> make_cells(const std::vector<std::string>& strategies, const std::vector<double>& caps_mib, const RuleFlags& rule) {
  check_not_empty("--strategies", strategies);
  std::vector<Cell> cells;
  for (const std::string& name : strategies) {
    DataParallelOptions options;
    options.strategy = find_strategy(name);
    options.broadcast_parameters = false;
    if (options.strategy.grouping == Grouping::kPlan) throw InputError("--strategies planned: expected a strategy that needs no plan");
    options.cap = cap_options(rule);
    if (options.strategy.grouping != Grouping::kCap) {
      cells.push_back({name, std::nullopt, {name, options}});
      continue;
    }
    check_not_empty("--cap-mib", caps_mib);
    for (const double mib : caps_mib) {
      options.cap.cap_bytes = bytes_from_mib(mib, "--cap-mib");
      cells.push_back({name, mib, {fmt::format("{} {} MiB", name, mib), options}});
    }
  }
  return cells;
}

std::vector<Cell> make_cells(const StepFlags& flags) {
  std::vector<std::string> strategies = flags.strategies;
  std::erase(strategies, "none");
  strategies.insert(strategies.begin(), "none");
  return make_cells(strategies, flags.caps_mib, flags.rule);
}

std::vector<Configuration> make_configurations(const StepFlags& flags) {
  if (flags.synthetic_tensors > 0) return {synthetic_configuration(flags)};
  check_not_empty("--model", flags.models);
  check_not_empty("--batch", flags.batch_sizes);
  check_not_empty("--sequence", flags.sequence_lengths);
  std::vector<Configuration> configurations;
  for (const std::string& model : flags.models) {
    for (const int64_t batch : flags.batch_sizes) {
      for (const int64_t sequence : flags.sequence_lengths) {
        JobFlags job = flags.job;
        job.model.model = model;
        job.batch_size = batch;
        job.sequence_length = sequence;
        check_job_flags(job);
        configurations.push_back({job, describe_job(job)});
      }
    }
  }
  return configurations;
}

nlohmann::json step_settings(const StepFlags& flags) {
  const auto launched = rank_info_from_environment();
  nlohmann::json settings = {{"models", flags.models},
                             {"model_sizes", flags.job.model.sizes},
                             {"batch_sizes", flags.batch_sizes},
                             {"sequence_lengths", flags.sequence_lengths},
                             {"dtype", flags.job.model.dtype},
                             {"text", flags.job.text},
                             {"learning_rate", flags.job.learning_rate},
                             {"synthetic_tensors", flags.synthetic_tensors},
                             {"synthetic_bytes", flags.synthetic_bytes},
                             {"strategies", flags.strategies},
                             {"caps_mib", flags.caps_mib},
                             {"rule", flags.rule.rule},
                             {"blocks", flags.blocks},
                             {"warmup", flags.warmup},
                             {"steps", flags.steps},
                             {"world_size", launched ? launched->world_size : flags.ranks.ranks},
                             {"threads", flags.ranks.threads}};
  if (flags.rule.first_cap_mib) settings["first_cap_mib"] = *flags.rule.first_cap_mib;
  if (flags.memory_limit_gib) settings["memory_limit_gib"] = *flags.memory_limit_gib;
  return settings;
}

nlohmann::json resumable_configurations(const StepFlags& flags) {
  const std::filesystem::path file = std::filesystem::path(flags.common.out) / "results.json";
  if (!flags.resume || !std::filesystem::exists(file)) return nlohmann::json::array();
  static const std::string kExpected = "a result of firkin bench step";
  const nlohmann::json found = parse_json(read_text_file(file, kLongestJsonLine, kExpected), file.string(), kExpected);
  if (!found.is_object() || found.value("command", nlohmann::json()) != "bench-step" || !found.contains("configurations")) {
    throw InputError(fmt::format("--resume: {}: expected {}", file.string(), kExpected));
  }
  const nlohmann::json ours = step_settings(flags);
  if (found.value("seed", uint64_t{0}) != flags.common.seed || found.value("settings", nlohmann::json()) != ours) {
    std::string differs = "seed";
    for (const auto& [name, value] : ours.items()) {
      if (found["settings"].value(name, nlohmann::json()) != value) differs = name;
    }
    throw InputError(fmt::format("--resume: {} was measured with other flags ({} differs); expected the same, or another --out",
                                 file.string(), differs));
  }
  return found["configurations"];
}

}  // namespace firkin::cli
