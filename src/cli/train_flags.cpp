#include "train_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "model/transformer.h"
#include "train/weights.h"

namespace firkin::cli {
namespace {

constexpr int64_t kMany = 1'000'000'000;

std::vector<std::string> training_strategies() {
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) {
    const bool trains = strategy.launch != Launch::kNever && strategy.launch != Launch::kByTorch;
    if (trains && strategy.grouping != Grouping::kPlan) names.emplace_back(strategy.name);
  }
  return names;
}

std::string why_no_training_strategy(const std::string& name) {
  return name == "torch" ? "torch is only for comparison, in firkin bench step and firkin trace" : "";
}

int64_t rows_of_a_pass(const TrainFlags& flags) {
  const int64_t share = flags.settings.batch / world_size(flags.ranks);
  return flags.settings.micro_batch > 0 ? std::min(flags.settings.micro_batch, share) : share;
}

bool has_master_weights(const TrainFlags& flags) {
  return !flags.no_master_weights && model_dtype(flags.model) != at::kFloat;
}

MemoryEstimate estimate_memory(const TrainFlags& flags) {
  MemoryEstimate estimate =
      estimate_training_memory(model_config(flags.model), rows_of_a_pass(flags), flags.sequence, element_bytes(flags.model));
  const int64_t in_float32 = estimate.parameters / element_bytes(flags.model) * static_cast<int64_t>(sizeof(float));
  estimate.optimizer = has_master_weights(flags) ? 3 * in_float32 : 2 * estimate.parameters;  // AdamW's two moments, and the masters
  estimate.checkpoint = estimate.parameters + estimate.optimizer;
  if (find_strategy(flags.strategy).shards) estimate.optimizer /= world_size(flags.ranks);
  return estimate;
}

void check_number(const char* flag, double value, double least, double most) {
  if (value >= least && value <= most) return;  // NaN is not
  throw InputError(fmt::format("{} {}: expected {} to {}", flag, value, least, most));
}

void add_data_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--data", flags.data, "text, read byte by byte, or a .bin of 16-bit tokens\n(default: a text that comes with Firkin)");
  TrainSettings& settings = flags.settings;
  CLI::Option* batch = app.add_option("--global-batch", settings.batch, "sequences per step, over all ranks")->capture_default_str();
  add_old_name(app, "--batch", batch);
  app.add_option("--sequence", flags.sequence, "tokens per sequence")->capture_default_str();
  app.add_option("--steps", settings.schedule.steps, "parameter updates")->capture_default_str()->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--held-share", flags.held_share, "share of the data, at its end, kept for evaluation")
      ->capture_default_str()
      ->group("Evaluation and checkpoints");
}

void add_learning_flags(CLI::App& app, TrainFlags& flags) {
  TrainSettings& settings = flags.settings;
  const char* const group = "Learning";
  const CLI::Range any(int64_t{0}, kMany);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str()->group(group);
  };
  add("--micro-batch", settings.micro_batch, "sequences per forward and backward; gradients\naccumulate (0: a rank's whole share)")
      ->check(any);
  add("--learning-rate", settings.schedule.peak, "peak learning rate of AdamW");
  add("--schedule", flags.schedule, "learning rate after warm-up")->check(CLI::IsMember({"constant", "linear", "cosine"}));
  add_old_name(app, "--warmup-steps",
               add("--learning-rate-warmup", settings.schedule.warmup_steps, "steps to reach the peak learning rate")->check(any));
  add("--final-share", settings.schedule.final_share, "share of the peak learning rate in the last step");
  add("--weight-decay", settings.adamw.weight_decay, "AdamW's, for all but norms and biases");
  add("--beta1", settings.adamw.beta1, "AdamW's");
  add("--beta2", settings.adamw.beta2, "AdamW's");
  app.add_flag("--no-master-weights", flags.no_master_weights, "with --dtype bf16: step the parameters, not float32\ncopies")->group(group);
  CLI::Option* clip = add("--clip", settings.clip_norm,
                          "maximum global norm of gradients; 0: no clipping.\nNeeds all gradients, so ordered trains as bucketed");
  app.add_option("--clip-each", settings.clip_each_norm, "instead: maximum norm of each parameter's gradient")
      ->excludes(clip)
      ->group(group);
  add("--on-nan", flags.on_nan, "on a loss or gradient that is not finite: stop, or\nskip the step")
      ->check(CLI::IsMember({"stop", "skip"}));
}

void add_communication_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--strategy", flags.strategy, "how to synchronise gradients")
      ->capture_default_str()
      ->check(why_no_training_strategy)
      ->check(CLI::IsMember(training_strategies()));
  add_old_name(app, "--cap-mib", add_size(app, "--cap", flags.cap_bytes, "bucket cap; firkin tune finds the fastest"), "MiB");
  app.add_option("--buckets", flags.buckets, "cap: use --cap; automatic: find buckets while training\nand keep them in --out for --resume")
      ->capture_default_str()
      ->check(CLI::IsMember({"cap", "automatic"}))
      ->group("Buckets");
  add_rule_flags(app, flags.rule);
}

void add_loop_flags(CLI::App& app, TrainFlags& flags) {
  const char* const group = "Evaluation and checkpoints";
  const auto add = [&](const char* name, int64_t& value, int64_t least, const char* help) {
    app.add_option(name, value, help)->capture_default_str()->check(CLI::Range(least, kMany))->group(group);
  };
  add("--evaluate-every", flags.loop.evaluate_every, 0, "steps between evaluations; 0: only after the last");
  add("--evaluate-windows", flags.loop.evaluate_windows, 1, "evaluate at most this many held-out sequences");
  add("--checkpoint-every", flags.loop.checkpoint_every, 0, "steps between checkpoints; 0: only at the end");
  add("--keep", flags.loop.keep, 1, "newest checkpoints to keep, besides the best");
  add("--print-every", flags.loop.print_every, 1, "steps between printed lines");
  CLI::Option* resume = app.add_flag("--resume", flags.resume, "continue from the newest checkpoint in --out, if any");
  app.add_option("--from", flags.from, "continue from this checkpoint instead")->needs(resume)->group(group);
  app.add_option("--import", flags.import_file, "initial weights, a .safetensors: published GPT-2, or\nfrom --export")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--export", flags.export_file, "write the final weights as .safetensors")->group(group);
}

double global_clip_norm(const TrainFlags& flags) {
  return flags.settings.clip_each_norm > 0 ? 0 : flags.settings.clip_norm;
}

constexpr const char* kOptimisation = "optimisation";  // in a checkpoint

nlohmann::json optimisation(const TrainFlags& flags) {
  const TrainSettings& settings = flags.settings;
  return {{"steps", settings.schedule.steps},
          {"learning-rate", settings.schedule.peak},
          {"schedule", flags.schedule},
          {"warmup-steps", settings.schedule.warmup_steps},
          {"final-share", settings.schedule.final_share},
          {"weight-decay", settings.adamw.weight_decay},
          {"beta1", settings.adamw.beta1},
          {"beta2", settings.adamw.beta2},
          {"clip", global_clip_norm(flags)},
          {"clip-each", settings.clip_each_norm}};
}

}  // namespace

void add_train_flags(CLI::App& app, TrainFlags& flags) {
  add_common_flags(app, flags.common, "train");
  add_rank_flags(app, flags.ranks);
  add_model_flags(app, flags.model);
  add_data_flags(app, flags);
  add_communication_flags(app, flags);
  add_loop_flags(app, flags);
  add_learning_flags(app, flags);
  add_memory_flag(app, flags.memory_limit_bytes);
  app.add_flag("--ignore-memory", flags.ignores_memory, "train even if memory seems too small")->group("Measuring");
  app.add_flag("--force", flags.ignores_memory)->group("");  // its old name
}

void check_train_flags(const TrainFlags& flags) {
  const TransformerConfig config = model_config(flags.model, flags.sequence, "--global-batch", flags.settings.batch);
  check_number("--learning-rate", flags.settings.schedule.peak, 0, 1e30);
  check_number("--final-share", flags.settings.schedule.final_share, 0, 1);
  check_number("--weight-decay", flags.settings.adamw.weight_decay, 0, 1e6);
  check_number("--beta1", flags.settings.adamw.beta1, 0, 0.999999999);
  check_number("--beta2", flags.settings.adamw.beta2, 0, 0.999999999);
  check_number("--clip", flags.settings.clip_norm, 0, 1e30);
  check_number("--clip-each", flags.settings.clip_each_norm, 0, 1e30);
  check_number("--held-share", flags.held_share, 0, 0.9);
  data_parallel_options(flags);
  try {
    check_batch(flags.settings.batch, world_size(flags.ranks));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--global-batch: {}", error.what()));
  }
  if (find_strategy(flags.strategy).shards && flags.settings.clip_each_norm > 0) {
    throw InputError("--clip-each: expected --clip with --strategy sharded");
  }
  training_data(flags).file->check_vocabulary(config.vocab_size);
  if (flags.import_file.empty()) return;
  TransformerLM shapes(config, at::TensorOptions(at::kMeta));
  import_weights(read_safetensors(flags.import_file), config, flags.import_file, shapes);
}

void check_train_memory(const TrainFlags& flags) {
  if (!flags.ignores_memory) check_memory(estimate_memory(flags), flags.memory_limit_bytes, flags.ranks);
}

std::string memory_in_text(const TrainFlags& flags) {
  const MemoryEstimate estimate = estimate_memory(flags);
  const int ranks = local_ranks(flags.ranks);
  return fmt::format("memory per rank: {}; about {} in all; {} available for {}", parts_in_text(estimate),
                     format_bytes(process_bytes(estimate)), format_bytes(available_memory(flags.memory_limit_bytes, flags.ranks)),
                     ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks));
}

TrainingData training_data(const TrainFlags& flags) {
  return split_data(std::make_shared<TokenFile>(text_or_shipped(flags.data)), flags.sequence, flags.common.seed, flags.held_share);
}

bool clips_ordered(const TrainFlags& flags) {
  const Strategy& strategy = find_strategy(flags.strategy);
  return strategy.wait == Wait::kAtFirstUse && !strategy.shards && global_clip_norm(flags) > 0;
}

TrainSettings train_settings(const TrainFlags& flags) {
  TrainSettings settings = flags.settings;
  settings.schedule.kind = schedule_from_name(flags.schedule);
  settings.adamw.master_weights = !flags.no_master_weights;
  settings.clip_norm = global_clip_norm(flags);
  settings.on_nonfinite = flags.on_nan == "skip" ? OnNonFinite::kSkip : OnNonFinite::kStop;
  return settings;
}

DataParallelOptions data_parallel_options(const TrainFlags& flags) {
  DataParallelOptions options;
  options.strategy = find_strategy(clips_ordered(flags) ? "bucketed" : flags.strategy);
  options.cap = cap_options(flags.rule);
  options.cap.cap_bytes = flags.cap_bytes;
  if (flags.buckets != "automatic") return options;
  if (flags.strategy != "bucketed" && flags.strategy != "ordered")
    throw InputError(fmt::format("--buckets automatic: expected --strategy bucketed or ordered, not {}", flags.strategy));
  options.buckets = automatic({.plan_file = (std::filesystem::path(flags.common.out) / kBucketsFile).string()});
  return options;
}

nlohmann::json describe_training(const TrainFlags& flags, const TrainingData& data) {
  const TransformerConfig config = model_config(flags.model);
  nlohmann::json model = {{"family", family_name(config.family)}, {"tied", config.tied}, {"rope_theta", config.rope_theta}};
  for (const ConfigSize& size : kConfigSizes) model[std::string(size.name)] = config.*size.member;
  return {{"model", model},
          {"dtype", flags.model.dtype},
          {"master-weights", has_master_weights(flags)},
          {"data", data.file->path().filename().string()},
          {"text", data.file->is_text()},
          {"tokens", data.file->size()},
          {"held-share", flags.held_share},
          {"batch", flags.settings.batch},
          {"sequence", flags.sequence},
          {"seed", flags.common.seed},
          {kOptimisation, optimisation(flags)}};
}

std::string changed_optimisation(const nlohmann::json& stored, const TrainFlags& flags) {
  std::vector<std::string> changes;
  if (!stored.is_object() || !stored.contains(kOptimisation)) return "";  // of a version that did not say it
  const nlohmann::json ours = optimisation(flags);
  for (const auto& [name, value] : ours.items()) {
    const nlohmann::json before = stored[kOptimisation].value(name, nlohmann::json());
    if (before != value) changes.push_back(fmt::format("--{} {} (before: {})", name, value.dump(), before.dump()));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

void check_same_training(const nlohmann::json& stored, const nlohmann::json& ours, const std::string& file) {
  for (const auto& [name, value] : ours.items()) {
    if (name == "data" || name == kOptimisation) continue;  // the same file may have another name; its size says more
    const nlohmann::json before = stored.is_object() && stored.contains(name) ? stored[name] : nlohmann::json();
    if (before == value) continue;
    throw InputError(fmt::format("{}: {} was {} and is now {}; expected the same, or another --out for a new run", file, name,
                                 before.dump(), value.dump()));
  }
}

}  // namespace firkin::cli
