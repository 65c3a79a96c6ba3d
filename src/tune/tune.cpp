#include "firkin/tune/tune.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bench/rank_machines.h"
#include "bench/ready_profile.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/ddp/module_parameters.h"
#include "report/words.h"
#include "results/results.h"
#include "tune/measure.h"

namespace firkin {
namespace {

// Returns what the body returns, or throws what it throws, after restoring the module's parameters and buffers and the
// tensors of `also`, and removing their gradients.
template <class Body>
auto with_state_restored(const torch::nn::Module& module, const std::vector<at::Tensor>& also, Body body) {
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  for (const std::vector<at::Tensor>& tensors : {module.parameters(), module.buffers(), also}) {
    for (const at::Tensor& tensor : tensors) kept.emplace_back(tensor, tensor.detach().clone());
  }
  const auto restore = [&kept] {  // no destructor: this may throw
    const at::NoGradGuard no_grad;
    for (auto& [tensor, before] : kept) {
      tensor.mutable_grad().reset();
      if (tensor.sizes() == before.sizes() && tensor.scalar_type() == before.scalar_type()) {
        tensor.copy_(before);
      } else {  // a step has resized it, or changed its type
        tensor.set_data(before);
      }
    }
  };
  std::optional<decltype(body())> result;
  try {
    result.emplace(body());
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return std::move(*result);
}

void check_options(const ModuleTuningOptions& options) {
  const auto at_least = [](const char* name, double value, double least) {
    if (!(value >= least)) throw InputError(fmt::format("tune: {} is {}; expected at least {}", name, value, least));
  };
  at_least("blocks", options.blocks.value_or(1), 1);
  at_least("warmup_steps", options.warmup_steps, 1);
  at_least("steps_per_block", options.steps_per_block, 1);
  at_least("profile_steps", options.profile_steps, kFewestProfileSteps);
  at_least("allreduce_seconds", options.allreduce_seconds, 0.1);
  at_least("seconds", options.seconds, 1);
}

// Constructing a DataParallel also checks that the ranks' modules are alike.
Workload workload_of(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group) {
  if (!step) throw InputError("tune: no training step; expected a function");
  const DataParallel same_on_all_ranks(module, group);
  // The module is not owned.
  return {.module = {std::shared_ptr<void>(), &module}, .parameters = module.parameters(), .loss = {}, .optimizer = {}, .whole_step = step};
}

ModuleProfile public_profile(const MeasuredProfile& profile) {
  return {.tensors = profile.tensors, .ready_order = profile.ready_order, .bare_backward_s = profile.bare_backward_s.value_or(0)};
}

// results: its sections must be filled.
ModuleTuning module_tuning(const Tuning& tuned, const Results& results) {
  ModuleTuning tuning;
  for (size_t i = 0; i < tuned.raced.size(); ++i) {
    const CurveRow& row = results.curve[i];
    const bool tied = std::ranges::find(tuned.standing.tied, i) != tuned.standing.tied.end();
    tuning.curve.push_back({tuned.raced[i], row.measured_s.value(), row.measured_ci_s.value(), tied});
  }
  tuning.decision = results.decision.value();
  tuning.cap_bytes = choice_of(tuned).cap_bytes;
  tuning.profile = public_profile(tuned.profile);
  tuning.allreduce = tuned.allreduce;
  tuning.notes = results.notes;
  tuning.options.cap.cap_bytes = tuning.cap_bytes;
  tuning.options.ready_order = tuned.profile.ready_order;
  tuning.text = results_in_text(results);
  return tuning;
}

ModelDescription description_of(const torch::nn::Module& module, const std::string& name) {
  int64_t parameters = 0, bytes = 0;
  const std::vector<NamedTensor> trainable = trainable_parameters(module);
  for (const NamedTensor& parameter : trainable) {
    parameters += parameter.tensor.numel();
    bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  }
  return {.name = name, .parameters = parameters, .tensors = std::ssize(trainable), .gradient_bytes = bytes};
}

ModuleTuning tune_module(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group,
                         const ModuleTuningOptions& options) {
  Workload workload = workload_of(module, step, group);
  ProcessGroup on_device = group;
  on_device.device = device_of(workload);  // where gradients are, all-reduces are measured
  const auto folder =
      on_rank_0_alone(group, [&] { return options.out.empty() ? nullptr : std::make_unique<OutputFolder>(options.out, "tune: out"); });
  Results results;
  results.run = begin_head("tune");
  results.run.seed = static_cast<int64_t>(options.seed);
  add_ranks(on_device, results.run.environment);
  results.run.model = description_of(module, options.name);
  TuneOptions settings;
  settings.phases = phases_of(options.seconds, options.blocks, options.caps);
  settings.profile_steps = options.profile_steps;
  settings.allreduce_seconds = options.allreduce_seconds;
  settings.steps = {.warmup_steps = options.warmup_steps, .timed_steps = options.steps_per_block};
  settings.seed = options.seed;
  show_progress(settings, options.progress && group.rank == 0);
  const Tuning tuned = tune(on_device, workload, settings);
  settings.on_progress = {};
  add_sections(tuned, results);
  results.notes = notes_of(tuned);
  ModuleTuning tuning = module_tuning(tuned, results);
  if (!folder) return tuning;
  const std::vector<OutputFile> files = tables_of(tuned);
  results.run.files = {kResultsFile};
  for (const OutputFile& file : files) results.run.files.push_back(file.name);
  folder->set_aside(results.run.files);
  write_files(options.out, results, files);
  return tuning;
}

}  // namespace

ModuleTuning tune(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group, const ModuleTuningOptions& options) {
  check_options(options);
  return with_state_restored(module, options.also, [&] { return tune_module(module, step, group, options); });
}

ModuleProfile profile(torch::nn::Module& module, const TrainingStep& step, const ProcessGroup& group, int steps) {
  if (steps < 1) throw InputError(fmt::format("profile: steps is {}; expected at least 1", steps));
  return with_state_restored(module, {}, [&] {
    Workload workload = workload_of(module, step, group);
    return public_profile(measure_ready_profile(group, workload, {.steps = steps}));
  });
}

}  // namespace firkin
