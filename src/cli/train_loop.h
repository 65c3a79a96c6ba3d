// The loop of `firkin train`: steps, evaluations, checkpoints, and what is said about them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/training.h"
#include "train/checkpoint_writer.h"
#include "train/metrics_log.h"
#include "train/trainer.h"
#include "train_flags.h"

namespace firkin::cli {

class TrainingLoop {
 public:
  // about: of checkpoints. stops: whether this rank was asked to end. Opens metrics.jsonl on rank 0.
  TrainingLoop(const TrainFlags& flags, Trainer& trainer, nlohmann::json about, std::function<bool()> stops);

  // Until all steps are done, or a rank was asked to end. Collective. Throws what Trainer::step() throws; checkpoints are written by then.
  void run();

  // On rank 0: what was done, this run and those before it.
  TrainingSection section() const;
  std::string last_words() const;
  // The checkpoint of the last step is not there, which was said.
  bool is_unsaved() const { return writer_ && writer_->last_failed(); }

 private:
  using Clock = std::chrono::steady_clock;

  bool speaks() const { return trainer_.group().rank == 0; }
  bool is_due(int64_t every) const;
  void save(std::optional<double> held_loss, TrainingRow& row);
  void record(const StepReport& report, TrainingRow row);
  void print_row(const TrainingRow& row);
  void say(const std::optional<std::string>& problem);

  const TrainFlags& flags_;
  Trainer& trainer_;
  nlohmann::json about_;
  std::function<bool()> stops_;
  std::optional<MetricsLog> metrics_;
  std::optional<CheckpointWriter> writer_;
  std::vector<TrainingRow> rows_;  // with those of earlier runs
  size_t earlier_rows_ = 0;
  bool stopping_ = false;
  int64_t printed_rows_ = 0;
  Clock::time_point began_ = Clock::now();
  double run_s_ = 0;
};

}  // namespace firkin::cli
