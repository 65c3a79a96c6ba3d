// firkin bench layers: forward and backward time of every layer, and when each gradient is ready.
#include <fmt/format.h>

#include <memory>

#include "bench/layer_bench.h"
#include "firkin/base/error.h"
#include "firkin/base/progress.h"
#include "firkin/plan/tensor_profile.h"
#include "job.h"
#include "model/transformer.h"

namespace firkin::cli {
namespace {

struct LayersFlags : RunFlags {
  JobFlags job;
  int steps = 20;
  bool keeps_perturbed = false;
};

constexpr double kMostPerturbation = 0.03;  // of a step, by what is watching it

std::string perturbation_text(const PairedRatio& ratio) {
  return fmt::format("{:+.1f} % (95 % interval {:+.1f} to {:+.1f} %)", 100 * (ratio.ratio - 1), 100 * (ratio.interval.low - 1),
                     100 * (ratio.interval.high - 1));
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
  Results results = begin_run("bench-layers", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  const LayerProfile profile = measure(flags, workload, group);
  if (group.rank != 0) return;
  const PairedRatio& ratio = profile.watched_to_bare;
  if (ratio.ratio - 1 > kMostPerturbation && !flags.keeps_perturbed) {
    throw RuntimeError(fmt::format("the clocks change a step by {}; expected at most {:.0f} %: use more --steps, or --keep-perturbed",
                                   perturbation_text(ratio), 100 * kMostPerturbation));
  }
  results.layers = profile.times;
  results.profile = ProfileSection{.tensors = profile.tensors,
                                   .bare_backward_s = {},
                                   .hook_perturbation = ratio.ratio - 1,
                                   .hook_perturbation_ci = Interval{ratio.interval.low - 1, ratio.interval.high - 1}};
  results.notes.push_back(fmt::format("The clocks change a step by {}.", perturbation_text(ratio)));
  finish_run(flags.common, results,
             {{"layer-sizes.csv", layer_sizes_csv(*results.layers)},
              {"layer-times.csv", layer_times_csv(*results.layers)},
              {"tensors.csv", tensors_csv(profile.tensors)}});
}

}  // namespace

Run declare_bench_layers(CLI::App& app) {
  auto flags = std::make_shared<LayersFlags>();
  app.footer(
      "Trains without communication, with a clock in every gradient's hook and after\n"
      "each layer of forward. Medians over steps of the slowest rank.\n\n"
      "backward: from when the previous layer (in backward) had all its gradients\n"
      "until this one has. The first one's therefore includes the loss, and a tied\n"
      "weight is ready only at the end. The total of forward includes reading the\n"
      "batch and the loss. tensors.csv: when autograd has finished each gradient; in\n"
      "tune's, the time to write it into a bucket is included.\n\n"
      "Half of the steps run without clocks. If the clocks slow a step by over 3 %,\n"
      "nothing is written (exit code 1), unless --keep-perturbed is given.\n\n"
      "  firkin bench layers --ranks 1 --model gpt2 --batch 1\n"
      "  firkin bench layers --ranks 2 --out run      then\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_run_flags(app, *flags, "bench-layers");
  add_job_flags(app, flags->job);
  add_value(app, "--steps", flags->steps, "steps with clocks, and as many without")->check(CLI::Range(4, 100000));
  app.add_flag("--keep-perturbed", flags->keeps_perturbed, "write the result even if clocks slow the step");
  app.add_flag("--force", flags->keeps_perturbed)->group("");  // its old name
  return [flags] {
    check_job(flags->job, flags->ranks);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
