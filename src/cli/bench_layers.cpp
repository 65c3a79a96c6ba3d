// firkin bench layers: forward and backward time of every layer, and when each gradient is ready.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "bench/layer_bench.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/plan/tensor_profile.h"
#include "firkin/stats/summary.h"
#include "language_model_job.h"
#include "layer_files.h"
#include "model/transformer.h"
#include "rank_flags.h"
#include "results.h"

namespace firkin::cli {
namespace {

struct LayersFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;
  int steps = 20;
  bool force = false;
};

constexpr double kMostPerturbation = 0.03;  // of a step, by what is watching it

nlohmann::json summary_json(const std::vector<double>& seconds) {
  if (seconds.empty()) return nullptr;
  const Summary time = summarize(seconds);
  return {{"median", time.median}, {"mean", time.mean}, {"stdev", time.stdev}, {"min", time.min}, {"max", time.max}};
}

nlohmann::json profile_json(const LayerProfile& profile) {
  nlohmann::json json;
  for (const LayerTimes& layer : profile.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"parameters", layer.parameters},
                              {"forward_s", summary_json(layer.forward_s)},
                              {"backward_s", summary_json(layer.backward_s)}});
    json["samples"]["layers"].push_back({{"name", layer.name}, {"forward_s", layer.forward_s}, {"backward_s", layer.backward_s}});
  }
  json["forward_s"] = summary_json(profile.forward_s);
  json["backward_s"] = summary_json(profile.backward_s);
  json["optimizer_s"] = summary_json(profile.optimizer_s);
  const PairedRatio& ratio = profile.watched_to_bare;
  json["profile"] = {{"backward_s", profile.tensors.backward_s},
                     {"hook_perturbation", ratio.ratio - 1},
                     {"hook_perturbation_ci", {{"low", ratio.interval.low - 1}, {"high", ratio.interval.high - 1}}},
                     {"tensors", nlohmann::json::array()}};
  for (size_t i = 0; i < profile.tensors.names.size(); ++i) {
    json["profile"]["tensors"].push_back(
        {{"name", profile.tensors.names[i]}, {"bytes", profile.tensors.bytes[i]}, {"ready_s", profile.tensors.ready_s[i]}});
  }
  json["samples"].update({{"forward_s", profile.forward_s},
                          {"backward_s", profile.backward_s},
                          {"optimizer_s", profile.optimizer_s},
                          {"watched_step_s", profile.watched_s},
                          {"bare_step_s", profile.bare_s}});
  return json;
}

std::string median_text(const std::vector<double>& seconds) {
  return seconds.empty() ? "-" : format_seconds(median(seconds));
}

std::string perturbation_text(const PairedRatio& ratio) {
  return fmt::format("{:+.1f} % (95 % interval {:+.1f} to {:+.1f} %)", 100 * (ratio.ratio - 1), 100 * (ratio.interval.low - 1),
                     100 * (ratio.interval.high - 1));
}

void print_layers(const LayerProfile& profile) {
  fmt::print("{:<22} {:>12} {:>10} {:>10} {:>10}\n", "layer", "parameters", "forward", "backward", "optimiser");
  int64_t parameters = 0;
  for (const LayerTimes& layer : profile.layers) {
    parameters += layer.parameters;
    fmt::print("{:<22} {:>12} {:>10} {:>10}\n", layer.name, layer.parameters, median_text(layer.forward_s), median_text(layer.backward_s));
  }
  fmt::print("{:<22} {:>12} {:>10} {:>10} {:>10}\n", "all", parameters, median_text(profile.forward_s), median_text(profile.backward_s),
             median_text(profile.optimizer_s));
  fmt::print("\nWatching changes a step by {}.\n", perturbation_text(profile.watched_to_bare));
}

LayerProfile measure(const LayersFlags& flags, Workload& workload, const ProcessGroup& group) {
  Progress progress("stepping", flags.steps, group.rank == 0);
  LayerBenchOptions options{
      .steps = flags.steps, .seed = flags.common.seed, .observe_forward = {}, .on_progress = [&progress](const std::string& done) {
        progress.advance(done);
      }};
  if (auto* model = workload.module->as<TransformerLMImpl>()) {
    options.observe_forward = [model](ForwardObserver observer) { model->observe_forward(std::move(observer)); };
  }
  return measure_layers(group, workload, options);
}

void run_rank(const LayersFlags& flags, const ProcessGroup& group) {
  Workload workload = make_job(flags.job, group, flags.common.seed);
  const LayerProfile profile = measure(flags, workload, group);
  if (group.rank != 0) return;
  if (profile.watched_to_bare.ratio - 1 > kMostPerturbation && !flags.force) {
    throw RuntimeError(fmt::format("watching changes a step by {}; expected at most {:.0f} %: take more --steps, or --force",
                                   perturbation_text(profile.watched_to_bare), 100 * kMostPerturbation));
  }
  nlohmann::json json = results_head("bench-layers", flags.common.seed);
  json["environment"] = environment(group.size, flags.ranks.backend);
  json["model"] = describe_job(flags.job);
  json.update(profile_json(profile));
  const std::filesystem::path out = flags.common.out;
  write_file_atomically(out / "results.json", json.dump(1) + "\n");
  write_file_atomically(out / "layer-sizes.csv", layer_sizes_csv(profile));
  write_file_atomically(out / "layer-times.csv", layer_times_csv(profile));
  write_tensors_csv(out / "tensors.csv", profile.tensors);
  if (flags.common.json) {
    print_json(json);
  } else {
    print_layers(profile);
    fmt::print("wrote {}/: results.json, layer-sizes.csv, layer-times.csv, tensors.csv\n", out.string());
  }
}

}  // namespace

Run declare_bench_layers(CLI::App& app) {
  auto flags = std::make_shared<LayersFlags>();
  app.footer(
      "Trains without communication, and looks on: a clock in every gradient's hook,\n"
      "and one after each layer of forward. Medians over steps of the slowest rank.\n\n"
      "backward: from when the layer before (in backward) had all its gradients to\n"
      "when this one has; so the first one's holds the loss, and a tied weight is\n"
      "ready only at the end. forward of all: with reading the batch, and the loss.\n"
      "tensors.csv: when autograd has finished each gradient; tune's also has the time\n"
      "to write it into a bucket.\n\n"
      "Half of the steps are bare. If the watched ones are over 3 % slower, nothing is\n"
      "written (exit code 1), unless --force.\n\n"
      "  firkin bench layers --ranks 1 --model gpt2 --batch 1\n"
      "  firkin bench layers --ranks 2 --out run      and then\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_common_flags(app, flags->common);
  add_rank_flags(app, flags->ranks);
  add_job_flags(app, flags->job);
  app.add_option("--steps", flags->steps, "watched steps, and as many bare ones")->capture_default_str()->check(CLI::Range(4, 100000));
  app.add_flag("--force", flags->force, "write the result even if watching changes the step");
  return [flags] {
    check_job_flags(flags->job);
    check_output_folder(flags->common.out, "--out");
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
