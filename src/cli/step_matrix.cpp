#include "step_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bench/torch_peer.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "results/results.h"
#include "run.h"
#include "workload/synthetic_workload.h"

namespace firkin::cli {
namespace {

Configuration synthetic_configuration(const StepFlags& flags) {
  make_synthetic_workload({.count = 1, .bytes = flags.synthetic_bytes});  // checks the bytes
  ModelDescription model;
  model.name = fmt::format("{} tensors of {} bytes", flags.synthetic_tensors, flags.synthetic_bytes);
  model.tensors = flags.synthetic_tensors;
  model.dtype = "fp32";
  model.gradient_bytes = flags.synthetic_tensors * flags.synthetic_bytes;
  return {.job = std::nullopt, .description = std::move(model)};
}

template <typename T>
void check_list(const char* flag, const std::vector<T>& values) {
  if (values.empty()) throw InputError(fmt::format("{}: expected at least one value", flag));
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) != value) throw InputError(fmt::format("{}: {} twice; expected each once", flag, *value));
  }
}

}  // namespace

void add_strategy_flags(CLI::App& app, std::vector<std::string>& strategies, std::vector<double>& caps_mib) {
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.grouping != Grouping::kPlan) names.emplace_back(strategy.name);
  }
  app.add_option("--strategies", strategies, "how gradients are synchronised")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember(names));
  app.add_option("--cap-mib", caps_mib, "caps of bucketed and torch, MiB")->delimiter(',')->capture_default_str()->check(mib_number());
}

std::vector<Cell> make_cells(const std::vector<std::string>& strategies, const std::vector<double>& caps_mib, const RuleFlags& rule) {
  check_list("--strategies", strategies);
  std::vector<Cell> cells;
  for (const std::string& name : strategies) {
    DataParallelOptions options;
    options.strategy = find_strategy(name);
    options.broadcast_parameters = false;
    if (options.strategy.launch == Launch::kByTorch && !torch_peer_unavailable().empty()) {
      throw InputError(fmt::format("--strategies {}: {}", name, torch_peer_unavailable()));
    }
    if (options.strategy.grouping == Grouping::kPlan) throw InputError("--strategies planned: expected a strategy that needs no plan");
    options.cap = cap_options(rule);
    if (options.strategy.grouping != Grouping::kCap) {
      cells.push_back({name, std::nullopt, {name, options}});
      continue;
    }
    check_list("--cap-mib", caps_mib);
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
  if (!flags.job.replay.empty()) {
    check_job_flags(flags.job);
    return {{flags.job, describe_job(flags.job)}};
  }
  check_list("--model", flags.models);
  check_list("--batch", flags.batch_sizes);
  check_list("--sequence", flags.sequence_lengths);
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

std::vector<StepConfiguration> resumable_configurations(const StepFlags& flags) {
  const std::filesystem::path file = std::filesystem::path(flags.common.out) / "results.json";
  if (!flags.resume || !std::filesystem::exists(file)) return {};
  Results found = read_results(file);
  if (found.run.command != "bench-step") {
    throw InputError(fmt::format("--resume: {} is of {}; expected a result of firkin bench step", file.string(), found.run.command));
  }
  if (const std::string difference = difference_from(found.run, flags.common, flags.ranks); !difference.empty()) {
    throw InputError(fmt::format("--resume: {} was measured with {}; expected the same, or another --out", file.string(), difference));
  }
  return std::move(found.configurations);
}

}  // namespace firkin::cli
