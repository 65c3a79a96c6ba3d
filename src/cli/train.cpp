// firkin train: trains a model, on any text or tokens, with checkpoints to continue from.
#include <exception>

#include "firkin/comm/rank_info.h"
#include "job.h"
#include "train/training_loop.h"
#include "train/weights.h"

#include <torch/utils.h>

namespace firkin::cli {
namespace {

// ---- The flags, and what they describe.

constexpr const char* kBucketsFile = "buckets.json";  // of --buckets automatic, in --out

struct TrainFlags : RunFlags {
  ModelFlags model;
  std::string data;  // file; empty: the text that Firkin ships
  double held_share = 0.1;
  int64_t sequence = 128;
  TrainSettings settings = {.schedule = {.warmup_steps = 20, .steps = 200}, .adamw = {}};  // with --clip-each, clip_norm counts no more
  std::string schedule = "cosine";
  std::string on_nan = "stop";
  bool no_master_weights = false;
  std::string strategy = "bucketed";
  int64_t cap_bytes = 25 << 20;
  std::string buckets = "cap";
  RuleFlags rule;
  LoopOptions loop;
  bool resume = false;
  std::string from;  // a checkpoint; empty: the newest
  std::string import_file;
  std::string export_file;
  bool ignores_memory = false;
  std::optional<int64_t> memory_limit_bytes;
};
constexpr int64_t kMany = 1'000'000'000;

bool has_master_weights(const TrainFlags& flags) {
  return !flags.no_master_weights && model_dtype(flags.model) != at::kFloat;
}

MemoryEstimate estimate_memory(const TrainFlags& flags) {
  const int64_t share = flags.settings.batch / world_size(flags.ranks), micro_batch = flags.settings.micro_batch;
  const int64_t rows_of_a_pass = micro_batch > 0 ? std::min(micro_batch, share) : share;
  MemoryEstimate estimate = estimate_training_memory(model_config(flags.model), rows_of_a_pass, flags.sequence, element_bytes(flags.model));
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
  add_value(app, "--global-batch", settings.batch, "sequences per step, over all ranks");
  add_value(app, "--sequence", flags.sequence, "tokens per sequence");
  add_value(app, "--steps", settings.schedule.steps, "parameter updates")->check(CLI::Range(int64_t{1}, kMany));
  add_value(app, "--held-share", flags.held_share, "share of the data, at its end, kept for evaluation", "Evaluation and checkpoints");
}

void add_learning_flags(CLI::App& app, TrainFlags& flags) {
  TrainSettings& settings = flags.settings;
  const char* const group = "Learning";
  const CLI::Range any(int64_t{0}, kMany);
  const auto add = [&](const char* name, auto& value, const char* help) { return add_value(app, name, value, help, group); };
  add("--micro-batch", settings.micro_batch, "sequences per forward and backward; gradients\naccumulate (0: a rank's whole share)")
      ->check(any);
  add("--learning-rate", settings.schedule.peak, "peak learning rate of AdamW");
  add("--schedule", flags.schedule, "learning rate after warm-up")->check(CLI::IsMember({"constant", "linear", "cosine"}));
  add("--learning-rate-warmup", settings.schedule.warmup_steps, "steps to reach the peak learning rate")->check(any);
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
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) {
    const bool trains = strategy.launch != Launch::kNever && strategy.launch != Launch::kByTorch;
    if (trains && strategy.grouping != Grouping::kPlan) names.emplace_back(strategy.name);
  }
  const auto why_not = [](const std::string& name) -> std::string {
    return name == "torch" ? "torch is only for comparison, in firkin bench step and firkin trace" : "";
  };
  add_value(app, "--strategy", flags.strategy, "how to synchronise gradients")->check(why_not)->check(CLI::IsMember(names));
  add_size(app, "--cap", flags.cap_bytes, "bucket cap; firkin tune finds the fastest");
  add_value(app, "--buckets", flags.buckets, "cap: use --cap; automatic: find buckets while training\nand keep them in --out for --resume",
            "Buckets")
      ->check(CLI::IsMember({"cap", "automatic"}));
  add_rule_flags(app, flags.rule);
}

void add_loop_flags(CLI::App& app, TrainFlags& flags) {
  const char* const group = "Evaluation and checkpoints";
  const auto add = [&](const char* name, int64_t& value, int64_t least, const char* help) {
    add_value(app, name, value, help, group)->check(CLI::Range(least, kMany));
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

TrainingData training_data(const TrainFlags& flags) {
  return split_data(std::make_shared<TokenFile>(text_or_shipped(flags.data)), flags.sequence, flags.common.seed, flags.held_share);
}

// Whether the strategy ordered is asked for with clipping by the norm of all gradients, which leaves it nothing to hide: such a training is
// bucketed.
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

// Checks everything that can be checked before ranks start: reads the data once. Throws InputError.
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

// What a checkpoint says of its training, beside the numbers: model, data, and what decides the samples.
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
          {kOptimisationKey, optimisation(flags)}};
}

// ---- What is there to go on from.

std::filesystem::path checkpoint_folder(const TrainFlags& flags) {
  return std::filesystem::path(flags.common.out) / kCheckpointFolder;
}

// The newest checkpoint. One that cannot be read is an error that offers an older one.
std::optional<NewestCheckpoint> newest_checkpoint(const TrainFlags& flags) {
  std::vector<std::string> problems;
  auto newest = read_newest_checkpoint(checkpoint_folder(flags), problems);
  if (problems.empty()) return newest;
  throw InputError(
      fmt::format("{}; {}", problems[0],
                  newest ? fmt::format("that of step {} is intact: --resume --from {}", newest->checkpoint.head.step, newest->file.string())
                         : "there is no older one"));
}

// What to continue from; nothing: start from the beginning.
std::optional<NewestCheckpoint> starting_point(const TrainFlags& flags, const nlohmann::json& about) {
  std::optional<NewestCheckpoint> start =
      checkpoint_of_this_run(checkpoint_folder(flags), flags.settings.schedule.steps, !flags.from.empty());
  if (!start && flags.resume) {
    start = flags.from.empty() ? newest_checkpoint(flags) : NewestCheckpoint{flags.from, read_checkpoint(flags.from)};
  }
  if (start) check_same_training(start->checkpoint.head.about, about, start->file);
  return start;
}

void say_where_it_starts(const TrainFlags& flags, const nlohmann::json& about, const std::optional<NewestCheckpoint>& start) {
  if (start) {
    fmt::print(stderr, "firkin: continuing from {}, {} steps done\n", start->file.string(), start->checkpoint.head.step);
    const std::string changes = changed_optimisation(start->checkpoint.head.about, about);
    if (!changes.empty()) fmt::print(stderr, "firkin: the remaining steps use {}\n", changes);
  } else if (flags.resume || restart_count() > 0) {
    fmt::print(stderr, "firkin: no checkpoint of this run in {}: starting from the first step\n", checkpoint_folder(flags).string());
  }
}

// Rank 0 alone sees the folder.
std::optional<NewestCheckpoint> prepare_folder(const TrainFlags& flags, const nlohmann::json& about, const ProcessGroup& group) {
  if (group.rank != 0) return std::nullopt;
  const MemoryEstimate estimate = estimate_memory(flags);
  const int ranks = local_ranks(flags.ranks);
  fmt::print(stderr, "firkin: memory per rank: {}; about {} in all; {} available for {}\n", parts_in_text(estimate),
             format_bytes(process_bytes(estimate)), format_bytes(available_memory(flags.memory_limit_bytes, flags.ranks)),
             ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks));
  if (clips_ordered(flags)) {
    fmt::print(stderr,
               "firkin: --clip {} needs every gradient before the first update, so ordered has nothing to overlap: training bucketed "
               "instead (--clip 0 or --clip-each NORM keep ordered)\n",
               flags.settings.clip_norm);
  }
  std::optional<NewestCheckpoint> start = starting_point(flags, about);
  say_where_it_starts(flags, about, start);
  flags.common.continues = start.has_value();
  set_aside(flags.common, {kResultsFile, "report.html", kMetricsFile, kMetricsTable, kCheckpointFolder, kBucketsFile});
  std::filesystem::create_directories(checkpoint_folder(flags));
  remove_unfinished_checkpoints(checkpoint_folder(flags));
  return start;
}

// ---- The training.

void run_rank(const TrainFlags& flags, const ProcessGroup& group) {
  const StopSignals signals;
  Results results = begin_run("train", flags.common, group);
  results.run.model = describe_model(flags.model);
  results.run.model->batch_size = flags.settings.batch;
  results.run.model->sequence_length = flags.sequence;
  const TrainingData data = training_data(flags);
  results.run.model->text = data.file->path().filename().string();
  const nlohmann::json about = describe_training(flags, data);
  const std::optional<NewestCheckpoint> start = prepare_folder(flags, about, group);
  const Checkpoint* checkpoint = start ? &start->checkpoint : nullptr;

  torch::manual_seed(flags.common.seed);
  TransformerLM model(model_config(flags.model), at::TensorOptions(model_dtype(flags.model)));
  if (checkpoint != nullptr) {
    load_parameters(*checkpoint, *model);
  } else if (group.rank == 0 && !flags.import_file.empty()) {
    import_weights(read_safetensors(flags.import_file), model_config(flags.model), flags.import_file, model);
  }
  model->to(group.device);
  const Continuation continuation = share_continuation(group, *model, checkpoint);
  DataParallelOptions options = data_parallel_options(flags);
  // Automatic buckets have an order of their own, in their file.
  if (continuation.step > 0 && !options.buckets) options.ready_order = continuation.ready_order;
  const auto loss = [model, device = group.device](const TokenBatch& host_batch) mutable {
    const TokenBatch batch = on_device(host_batch, device);
    return language_model_loss(model->forward(batch.tokens), batch.targets);
  };
  Trainer trainer(group, model.ptr(), loss, data, train_settings(flags), options);
  if (continuation.step > 0) continue_training(trainer, continuation, checkpoint);

  LoopOptions loop_options = flags.loop;
  loop_options.out = flags.common.out;
  loop_options.steps = flags.settings.schedule.steps;
  loop_options.print_to = flags.common.quiet ? nullptr : flags.common.json ? stderr : stdout;
  TrainingLoop loop(loop_options, trainer, about, [&signals] { return signals.received(); });
  std::exception_ptr not_finite;
  try {
    loop.run();
  } catch (const NonFiniteError&) {
    not_finite = std::current_exception();
  }
  if (group.rank == 0) {
    trainer.module();  // drained
    if (!flags.export_file.empty()) write_safetensors(flags.export_file, exported_weights(model, model_config(flags.model)));
    results.training = loop.section();
    results.complete = trainer.next_step() >= flags.settings.schedule.steps;
    finish_run(flags.common, results, {}, loop.last_words());
  }
  if (not_finite) std::rethrow_exception(not_finite);
  if (loop.is_unsaved()) throw RuntimeError("the training ended without its last checkpoint; the reason is printed above");
}

}  // namespace

Run declare_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  app.footer(
      "Trains a transformer language model with AdamW. A step's samples depend only on\n"
      "--seed and the step, so any number of ranks that divides --global-batch trains\n"
      "the same model. --out receives metrics.jsonl (one line per step), checkpoints/,\n"
      "results.json and report.html.\n\n"
      "loss: on the step's samples. held: on the part that is never trained on.\n"
      "exposed: share of the time spent waiting for gradients.\n\n"
      "SIGINT, SIGTERM and SIGUSR1 stop the run after the current step, with a\n"
      "checkpoint. --resume continues with the losses of an uninterrupted run. Under\n"
      "torchrun --max-restarts, a lost rank costs the steps since the last checkpoint.\n\n"
      "  firkin train --ranks 2                       the demo model on a short text\n"
      "  firkin train --ranks 2 --data book.txt --steps 2000 --out book\n"
      "  firkin train --ranks 2 --data book.txt --steps 2000 --out book --resume\n"
      "  firkin train --model gpt2 --data fineweb.bin --sequence 1024\n"
      "  firkin train --config run.toml               with [train] and steps = 500\n");
  add_run_flags(app, *flags, "train");
  add_model_flags(app, flags->model);
  add_data_flags(app, *flags);
  add_communication_flags(app, *flags);
  add_loop_flags(app, *flags);
  add_learning_flags(app, *flags);
  add_memory_flag(app, flags->memory_limit_bytes);
  app.add_flag("--ignore-memory", flags->ignores_memory, "train even if memory seems too small")->group("Measuring");
  return [flags] {
    check_train_flags(*flags);
    if (!flags->ignores_memory) check_memory(estimate_memory(*flags), flags->memory_limit_bytes, flags->ranks);
    claim_output_folder(flags->common, writes_results());
    if (writes_results() && flags->resume && restart_count() == 0) starting_point(*flags, describe_training(*flags, training_data(*flags)));
    std::optional<PassedSignals> passed;
    if (!rank_info_from_environment()) passed.emplace();
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
