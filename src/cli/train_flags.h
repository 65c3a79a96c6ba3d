// The flags of `firkin train`, and what they describe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "firkin/ddp/data_parallel.h"
#include "job.h"
#include "train/trainer.h"
#include "train/training_loop.h"

namespace firkin::cli {

inline constexpr const char* kBucketsFile = "buckets.json";  // of --buckets automatic, in --out

struct TrainFlags {
  CommonFlags common;
  RankFlags ranks;
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
void add_train_flags(CLI::App& app, TrainFlags& flags);

// Checks everything that can be checked before ranks start: reads the data once. Throws InputError.
void check_train_flags(const TrainFlags& flags);

// Throws InputError unless all ranks of this machine have room, or under --ignore-memory.
void check_train_memory(const TrainFlags& flags);

// What tensors will hold, and what there is: one line.
std::string memory_in_text(const TrainFlags& flags);

TrainingData training_data(const TrainFlags& flags);
// Whether the strategy ordered is asked for with clipping by the norm of all gradients, which leaves it nothing to hide: such a training is
// bucketed.
bool clips_ordered(const TrainFlags& flags);
TrainSettings train_settings(const TrainFlags& flags);
DataParallelOptions data_parallel_options(const TrainFlags& flags);

// What a checkpoint says of its training, beside the numbers: model, data, and what decides the samples.
nlohmann::json describe_training(const TrainFlags& flags, const TrainingData& data);

// What a checkpoint's description and these flags say differently of how parameters are updated, which may change on the way:
// "--steps 300 (before: 200)"; empty: nothing.
std::string changed_optimisation(const nlohmann::json& stored, const TrainFlags& flags);

// Throws InputError unless a checkpoint's description is that of this training, in what must be the same to go on. file: the checkpoint's.
void check_same_training(const nlohmann::json& stored, const nlohmann::json& ours, const std::string& file);

}  // namespace firkin::cli
