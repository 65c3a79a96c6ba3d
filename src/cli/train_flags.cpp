#include "train_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data_folder.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "firkin/base/units.h"
#include "firkin/comm/rank_info.h"
#include "language_model_job.h"
#include "model/transformer.h"
#include "train/model_weights.h"

namespace firkin::cli {
namespace {

constexpr int64_t kMany = 1'000'000'000;

std::filesystem::path data_file(const TrainFlags& flags) {
  return flags.data.empty() ? shipped_text() : std::filesystem::path(flags.data);
}

std::vector<std::string> training_strategies() {
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) {
    const bool trains = strategy.launch != Launch::kNever && strategy.launch != Launch::kByTorch;
    if (trains && strategy.grouping != Grouping::kPlan) names.emplace_back(strategy.name);
  }
  return names;
}

std::string why_no_training_strategy(const std::string& name) {
  return name == "torch" ? "torch is for firkin bench step and firkin trace, which compare with it" : "";
}

int world_size(const TrainFlags& flags) {
  const auto launched = rank_info_from_environment();
  return launched ? launched->world_size : flags.ranks.ranks;
}

// On this machine.
int local_ranks(const TrainFlags& flags) {
  const auto launched = rank_info_from_environment();
  return launched ? launched->local_world_size : flags.ranks.ranks;
}

int64_t available_bytes(const TrainFlags& flags) {
  if (!flags.memory_limit_gib) return available_memory_bytes();
  return memory_limit_bytes(*flags.memory_limit_gib) * local_ranks(flags);
}

int64_t rows_of_a_pass(const TrainFlags& flags) {
  const int64_t share = flags.batch / world_size(flags);
  return flags.micro_batch > 0 ? std::min(flags.micro_batch, share) : share;
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
  return estimate;
}

void check_number(const char* flag, double value, double least, double most) {
  if (value >= least && value <= most) return;  // NaN is not
  throw InputError(fmt::format("{} {}: expected {} to {}", flag, value, least, most));
}

void add_learning_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--steps", flags.steps, "updates of the parameters")->capture_default_str()->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--batch", flags.batch, "sequences per step, over all ranks")->capture_default_str();
  app.add_option("--micro-batch", flags.micro_batch,
                 "sequences of one forward and backward; gradients are\nadded up (0: a rank's whole share)")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_option("--sequence", flags.sequence, "tokens per sequence")->capture_default_str();
  app.add_option("--learning-rate", flags.learning_rate, "the highest; of AdamW")->capture_default_str();
  app.add_option("--schedule", flags.schedule, "of the learning rate after warm-up")
      ->capture_default_str()
      ->check(CLI::IsMember({"constant", "linear", "cosine"}));
  app.add_option("--warmup-steps", flags.warmup_steps, "up to the highest learning rate")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_option("--final-share", flags.final_share, "of the highest learning rate, in the last step")->capture_default_str();
  app.add_option("--weight-decay", flags.weight_decay, "not of norms and biases")->capture_default_str();
  app.add_option("--beta1", flags.beta1, "AdamW's")->capture_default_str();
  app.add_option("--beta2", flags.beta2, "AdamW's")->capture_default_str();
  app.add_flag("--no-master-weights", flags.no_master_weights,
               "with --dtype bf16: steps on the parameters themselves, not\non copies in float32");
  auto* const clip =
      app.add_option("--clip", flags.clip_norm,
                     "largest norm of all gradients; 0: never clip. It needs every\ngradient: --strategy ordered trains as bucketed then")
          ->capture_default_str();
  app.add_option("--clip-each", flags.clip_each_norm, "largest norm of each parameter's gradient, instead")->excludes(clip);
  app.add_option("--on-nan", flags.on_nan, "a loss or gradient that is not finite: stop, or skip\nthe step")
      ->capture_default_str()
      ->check(CLI::IsMember({"stop", "skip"}));
}

double global_clip_norm(const TrainFlags& flags) {
  return flags.clip_each_norm > 0 ? 0 : flags.clip_norm;
}

constexpr const char* kOptimisation = "optimisation";  // in a checkpoint

nlohmann::json optimisation(const TrainFlags& flags) {
  return {{"steps", flags.steps},
          {"learning-rate", flags.learning_rate},
          {"schedule", flags.schedule},
          {"warmup-steps", flags.warmup_steps},
          {"final-share", flags.final_share},
          {"weight-decay", flags.weight_decay},
          {"beta1", flags.beta1},
          {"beta2", flags.beta2},
          {"clip", global_clip_norm(flags)},
          {"clip-each", flags.clip_each_norm}};
}

}  // namespace

void add_train_flags(CLI::App& app, TrainFlags& flags) {
  add_common_flags(app, flags.common, "train");
  add_rank_flags(app, flags.ranks);
  add_model_flags(app, flags.model);
  app.add_option("--data", flags.data, "text, byte by byte, or a .bin of 16-bit tokens\n(default: the text that Firkin ships)");
  app.add_option("--held-share", flags.held_share, "of the data, at its end: evaluated, never trained on")->capture_default_str();
  add_learning_flags(app, flags);
  app.add_option("--strategy", flags.strategy, "how gradients are synchronised")
      ->capture_default_str()
      ->check(why_no_training_strategy)
      ->check(CLI::IsMember(training_strategies()));
  app.add_option("--cap-mib", flags.cap_mib, "of a bucket, MiB; firkin tune finds the best")->capture_default_str()->check(mib_number());
  app.add_option("--buckets", flags.buckets, "cap: up to --cap-mib; automatic: chosen while it trains,\nand kept in --out for --resume")
      ->capture_default_str()
      ->check(CLI::IsMember({"cap", "automatic"}));
  add_rule_flags(app, flags.rule);
  app.add_option("--evaluate-every", flags.evaluate_every, "steps; 0: only after the last")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_option("--evaluate-windows", flags.evaluate_windows, "sequences of the held part, at most")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--checkpoint-every", flags.checkpoint_every, "steps; 0: only at the end")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_option("--keep", flags.keep, "newest checkpoints that stay; the best stays, too")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kMany));
  CLI::Option* resume = app.add_flag("--resume", flags.resume, "go on from the newest checkpoint in --out, if any");
  app.add_option("--from", flags.from, "another checkpoint to go on from")->needs(resume);
  app.add_option("--import", flags.import_file, "a .safetensors with the weights to begin with; GPT-2's as\npublished, or of --export")
      ->check(CLI::ExistingFile);
  app.add_option("--export", flags.export_file, "the weights at the end, as a .safetensors file");
  app.add_option("--print-every", flags.print_every, "steps")->capture_default_str()->check(CLI::Range(int64_t{1}, kMany));
  add_memory_flag(app, flags.memory_limit_gib);
  app.add_flag("--force", flags.force, "train even if memory looks too small");
}

void check_train_flags(const TrainFlags& flags) {
  static constexpr int64_t kLargest = 1 << 20;
  const auto check_size = [](const char* flag, int64_t value) {
    if (value < 1 || value > kLargest) throw InputError(fmt::format("{} {}: expected 1 to {}", flag, value, kLargest));
  };
  check_size("--batch", flags.batch);
  check_size("--sequence", flags.sequence);
  check_number("--learning-rate", flags.learning_rate, 0, 1e30);
  check_number("--final-share", flags.final_share, 0, 1);
  check_number("--weight-decay", flags.weight_decay, 0, 1e6);
  check_number("--beta1", flags.beta1, 0, 0.999999999);
  check_number("--beta2", flags.beta2, 0, 0.999999999);
  check_number("--clip", flags.clip_norm, 0, 1e30);
  check_number("--clip-each", flags.clip_each_norm, 0, 1e30);
  check_number("--held-share", flags.held_share, 0, 0.9);
  data_parallel_options(flags);
  try {
    check_batch(flags.batch, world_size(flags));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--batch: {}", error.what()));
  }
  const TransformerConfig config = model_config(flags.model);
  if (config.context_length < flags.sequence) {
    throw InputError(fmt::format("--sequence {}: expected at most the model's context_length {}", flags.sequence, config.context_length));
  }
  training_data(flags).file->check_vocabulary(config.vocab_size);
  if (flags.import_file.empty()) return;
  TransformerLM shapes(config, at::TensorOptions(at::kMeta));
  import_weights(read_safetensors(flags.import_file), config, flags.import_file, shapes);
}

void check_train_memory(const TrainFlags& flags) {
  if (uses_gpus(flags.ranks) && !flags.memory_limit_gib) return;  // the GPU says when it is full
  if (!flags.force) check_training_memory(estimate_memory(flags), local_ranks(flags), available_bytes(flags));
}

std::string memory_in_text(const TrainFlags& flags) {
  const MemoryEstimate estimate = estimate_memory(flags);
  return fmt::format("memory a rank: {}; about {} with all else, and {} are available for {}", parts_in_text(estimate),
                     format_bytes(process_bytes(estimate)), format_bytes(available_bytes(flags)),
                     local_ranks(flags) == 1 ? "one rank" : fmt::format("{} ranks", local_ranks(flags)));
}

TrainingData training_data(const TrainFlags& flags) {
  return split_data(std::make_shared<TokenFile>(data_file(flags)), flags.sequence, flags.common.seed, flags.held_share);
}

bool clips_ordered(const TrainFlags& flags) {
  return find_strategy(flags.strategy).wait == Wait::kAtFirstUse && global_clip_norm(flags) > 0;
}

TrainSettings train_settings(const TrainFlags& flags) {
  return {.batch = flags.batch,
          .micro_batch = flags.micro_batch,
          .schedule = {.kind = schedule_from_name(flags.schedule),
                       .peak = flags.learning_rate,
                       .warmup_steps = flags.warmup_steps,
                       .steps = flags.steps,
                       .final_share = flags.final_share},
          .adamw = {.beta1 = flags.beta1,
                    .beta2 = flags.beta2,
                    .epsilon = 1e-8,
                    .weight_decay = flags.weight_decay,
                    .master_weights = !flags.no_master_weights},
          .clip_norm = global_clip_norm(flags),
          .clip_each_norm = flags.clip_each_norm,
          .on_nonfinite = flags.on_nan == "skip" ? OnNonFinite::kSkip : OnNonFinite::kStop};
}

DataParallelOptions data_parallel_options(const TrainFlags& flags) {
  DataParallelOptions options;
  options.strategy = find_strategy(clips_ordered(flags) ? "bucketed" : flags.strategy);
  options.cap = cap_options(flags.rule);
  options.cap.cap_bytes = bytes_from_mib(flags.cap_mib, "--cap-mib");
  if (flags.buckets != "automatic") return options;
  if (flags.strategy != "bucketed")
    throw InputError(fmt::format("--buckets automatic: expected --strategy bucketed, not {}", flags.strategy));
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
          {"batch", flags.batch},
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
    throw InputError(fmt::format("{}: {} was {}, and is {} now; expected the same, or a training of its own in another --out", file, name,
                                 before.dump(), value.dump()));
  }
}

}  // namespace firkin::cli
