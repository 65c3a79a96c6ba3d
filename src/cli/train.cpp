// firkin train: trains a model, on any text or tokens, with checkpoints to continue from.
#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/rank_info.h"
#include "model/transformer.h"
#include "train/checkpoint.h"
#include "train/training_loop.h"
#include "train/weights.h"
#include "train_flags.h"

#include <torch/utils.h>

namespace firkin::cli {
namespace {

constexpr const char* kRunKey = "run";  // in a checkpoint: which run of torchrun wrote it

std::filesystem::path checkpoint_folder(const TrainFlags& flags) {
  return std::filesystem::path(flags.common.out) / kCheckpointFolder;
}

std::optional<RunId> run_of(const CheckpointHead& head) {
  if (!head.about.is_object() || !head.about.contains(kRunKey) || !head.about[kRunKey].is_string()) return std::nullopt;
  return run_id_from(head.about[kRunKey].get<std::string>());
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

// What torchrun's earlier ranks of this run have left, the newest that is whole. None: this is the beginning, or the folder is another
// run's.
std::optional<NewestCheckpoint> checkpoint_of_this_run(const TrainFlags& flags) {
  const std::optional<RunId> ours = run_id_from_environment();
  if (!ours) return std::nullopt;
  std::vector<std::string> problems;
  auto newest = read_newest_checkpoint(checkpoint_folder(flags), problems);
  if (newest) {
    const CheckpointHead& head = newest->checkpoint.head;
    const std::optional<RunId> theirs = run_of(head);
    if (!theirs || !is_same_run(*theirs, *ours, restart_count())) return std::nullopt;
    // A job started once more, under the name of one that is done or with a checkpoint to continue from, is another.
    const bool may_be_new = restart_count() == 0 && theirs->agent != ours->agent;
    if (may_be_new && (head.step >= flags.settings.schedule.steps || !flags.from.empty())) return std::nullopt;
  }
  for (const std::string& problem : problems) fmt::print(stderr, "firkin: {}\n", problem);
  return newest;
}

// What to continue from; nothing: start from the beginning.
std::optional<NewestCheckpoint> starting_point(const TrainFlags& flags, const nlohmann::json& about) {
  std::optional<NewestCheckpoint> start = checkpoint_of_this_run(flags);
  if (!start && flags.resume) {
    start = flags.from.empty() ? newest_checkpoint(flags) : NewestCheckpoint{flags.from, read_checkpoint(flags.from)};
  }
  if (start) check_same_training(start->checkpoint.head.about, about, start->file.string());
  return start;
}

void say_where_it_starts(const TrainFlags& flags, const std::optional<NewestCheckpoint>& start) {
  if (start) {
    fmt::print(stderr, "firkin: continuing from {}, {} steps done\n", start->file.string(), start->checkpoint.head.step);
    const std::string changes = changed_optimisation(start->checkpoint.head.about, flags);
    if (!changes.empty()) fmt::print(stderr, "firkin: the remaining steps use {}\n", changes);
  } else if (flags.resume || restart_count() > 0) {
    fmt::print(stderr, "firkin: no checkpoint of this run in {}: starting from the first step\n", checkpoint_folder(flags).string());
  }
}

// Rank 0 alone sees the folder.
std::optional<NewestCheckpoint> prepare_folder(const TrainFlags& flags, const nlohmann::json& about, const ProcessGroup& group) {
  if (group.rank != 0) return std::nullopt;
  fmt::print(stderr, "firkin: {}\n", memory_in_text(flags));
  if (clips_ordered(flags)) {
    fmt::print(stderr,
               "firkin: --clip {} needs every gradient before the first update, so ordered has nothing to overlap: training bucketed "
               "instead (--clip 0 or --clip-each NORM keep ordered)\n",
               flags.settings.clip_norm);
  }
  std::optional<NewestCheckpoint> start = starting_point(flags, about);
  say_where_it_starts(flags, start);
  if (start && flags.common.folder) {
    flags.common.folder->older_result_is_kept = true;  // what is there goes on
  } else {
    keep_older(flags.common, {kResultsFile, "report.html", kMetricsFile, kMetricsTable, kCheckpointFolder, kBucketsFile});
  }
  std::filesystem::create_directories(checkpoint_folder(flags));
  remove_unfinished_checkpoints(checkpoint_folder(flags));
  return start;
}

void run_rank(const TrainFlags& flags, const ProcessGroup& group) {
  const StopSignals signals;
  Results results;
  results.run = begin_run("train", flags.common, group);
  results.run.model = describe_model(flags.model);
  results.run.model->batch_size = flags.settings.batch;
  results.run.model->sequence_length = flags.sequence;
  const TrainingData data = training_data(flags);
  results.run.model->text = data.file->path().filename().string();
  nlohmann::json about = describe_training(flags, data);
  const std::optional<NewestCheckpoint> start = prepare_folder(flags, about, group);
  if (const auto run = run_id_from_environment()) about[kRunKey] = text_of(*run);
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
  add_train_flags(app, *flags);
  return [flags] {
    check_train_flags(*flags);
    check_train_memory(*flags);
    claim_output_folder(flags->common, writes_results());
    if (writes_results() && flags->resume && restart_count() == 0) starting_point(*flags, describe_training(*flags, training_data(*flags)));
    std::optional<PassedSignals> passed;
    if (!rank_info_from_environment()) passed.emplace();
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
