#include "language_model_job.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "data_folder.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "firkin/base/units.h"
#include "firkin/comm/rank_info.h"
#include "model/memory_estimate.h"
#include "model/transformer.h"
#include "workload/text_data.h"

#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace firkin::cli {
namespace {

std::filesystem::path text_file(const JobFlags& flags) {
  return flags.text.empty() ? shipped_text() : std::filesystem::path(flags.text);
}

TensorProfile replayed_profile(const JobFlags& flags) {
  TensorProfile profile = read_tensors_csv(flags.replay);
  if (!profile.knows_forward()) profile = with_forward(std::move(profile), profile.backward_s / 2);
  return scaled(profile, flags.replay_scale);
}

ModelDescription describe_replay(const JobFlags& flags) {
  const TensorProfile profile = replayed_profile(flags);
  ModelDescription model;
  model.name = fmt::format("replay of {}", std::filesystem::path(flags.replay).filename().string());
  if (flags.replay_scale.bytes != 1) model.name += fmt::format(", bytes x {}", flags.replay_scale.bytes);
  if (flags.replay_scale.time != 1) model.name += fmt::format(", times x {}", flags.replay_scale.time);
  model.dtype = "fp32";
  model.tensors = static_cast<int64_t>(profile.bytes.size());
  model.gradient_bytes = profile.total_bytes();
  model.parameters = *model.gradient_bytes / kFloatBytes;
  return model;
}

}  // namespace

void add_replay_flags(CLI::App& app, JobFlags& flags) {
  app.add_option("--replay", flags.replay,
                 "a tensors.csv instead of a model: gradients of its\nsizes at its times, computation slept through")
      ->check(CLI::ExistingFile);
  app.add_option("--scale-bytes", flags.replay_scale.bytes, "of the replay's gradients")->capture_default_str()->needs("--replay");
  app.add_option("--scale-time", flags.replay_scale.time, "of the replay's computation")->capture_default_str()->needs("--replay");
}

void check_replay_alone(const CLI::App& app) {
  check_alone(app, "--replay", model_flag_names());
  check_alone(app, "--replay", {"--batch", "--sequence", "--text", "--learning-rate"});
}

void add_job_flags(CLI::App& app, JobFlags& flags) {
  add_model_flags(app, flags.model);
  app.add_option("--batch", flags.batch_size, "sequences per rank and step")->capture_default_str();
  app.add_option("--sequence", flags.sequence_length, "tokens per sequence")->capture_default_str();
  add_training_flags(app, flags);
  add_memory_flag(app, flags.memory_limit_gib);
}

void add_memory_flag(CLI::App& app, std::optional<double>& limit_gib) {
  app.add_option("--memory-limit-gib", limit_gib, "per rank; what needs more is refused, or skipped\n(default: what is available)")
      ->check(CLI::PositiveNumber)
      ->check([](const std::string& text) {
        constexpr double kMost = 1 << 20;  // 1 PiB, so that the sum over the ranks of a machine fits into 63 bits
        return std::strtod(text.c_str(), nullptr) <= kMost ? "" : fmt::format("{}: expected at most {} GiB", text, kMost);
      });
}

int64_t memory_limit_bytes(double limit_gib) {
  return static_cast<int64_t>(limit_gib * static_cast<double>(kGiB));
}

void add_training_flags(CLI::App& app, JobFlags& flags) {
  app.add_option("--text", flags.text, "file to train on, byte by byte (default: the text that\nFirkin ships)");
  app.add_option("--learning-rate", flags.learning_rate, "of plain SGD")->capture_default_str();
}

void check_job_flags(const JobFlags& flags) {
  if (!flags.replay.empty()) {
    replayed_profile(flags);
    return;
  }
  static constexpr int64_t kLargest = 1 << 20;
  const auto check_size = [](const char* flag, int64_t value) {
    if (value < 1 || value > kLargest) throw InputError(fmt::format("{} {}: expected 1 to {}", flag, value, kLargest));
  };
  check_size("--batch", flags.batch_size);
  check_size("--sequence", flags.sequence_length);
  if (!(flags.learning_rate > 0) || !std::isfinite(flags.learning_rate)) {
    throw InputError(fmt::format("--learning-rate {}: expected a positive number", flags.learning_rate));
  }
  model_dtype(flags.model);
  const TransformerConfig config = model_config(flags.model);
  if (config.context_length < flags.sequence_length) {
    throw InputError(
        fmt::format("--sequence {}: expected at most the model's context_length {}", flags.sequence_length, config.context_length));
  }
  if (config.vocab_size < TextData::kVocabSize) {
    throw InputError(
        fmt::format("--vocab-size {}: expected at least {}, one token per byte value", config.vocab_size, TextData::kVocabSize));
  }
  const TextData text(text_file(flags), flags.sequence_length);
  if (flags.batch_size * flags.sequence_length > text.size()) {
    throw InputError(fmt::format("--batch {}: {} tokens; expected at most the {} bytes of {}", flags.batch_size,
                                 flags.batch_size * flags.sequence_length, text.size(), text_file(flags).string()));
  }
}

MemoryEstimate estimate_job_memory(const JobFlags& flags) {
  if (flags.replay.empty()) {
    return estimate_training_memory(model_config(flags.model), flags.batch_size, flags.sequence_length, element_bytes(flags.model));
  }
  const int64_t bytes = replayed_profile(flags).total_bytes();
  return {.parameters = bytes, .gradients = bytes};
}

void check_job_memory(const JobFlags& flags, const RankFlags& ranks) {
  if (uses_gpus(ranks) && !flags.memory_limit_gib) return;  // the GPU says when it is full
  const auto launched = rank_info_from_environment();
  const MemoryEstimate estimate = estimate_job_memory(flags);
  const int local_ranks = launched ? launched->local_world_size : ranks.ranks;
  check_training_memory(estimate, local_ranks,
                        flags.memory_limit_gib ? memory_limit_bytes(*flags.memory_limit_gib) * local_ranks : available_memory_bytes());
}

ModelDescription describe_job(const JobFlags& flags) {
  if (!flags.replay.empty()) return describe_replay(flags);
  ModelDescription model = describe_model(flags.model);
  model.batch_size = flags.batch_size;
  model.sequence_length = flags.sequence_length;
  model.text = text_file(flags).filename().string();
  return model;
}

Workload make_job(const JobFlags& flags, const ProcessGroup& group, uint64_t seed) {
  if (!flags.replay.empty()) {
    if (!group.device.is_cpu()) throw InputError("--replay on a GPU: it sleeps on the CPU; expected --device cpu");
    return make_replay_workload(replayed_profile(flags));
  }
  torch::manual_seed(seed);
  TransformerLM model(model_config(flags.model), at::TensorOptions(model_dtype(flags.model)));
  model->to(group.device);
  const BatchShape shape{
      .local_batch = flags.batch_size, .sequence_length = flags.sequence_length, .rank = group.rank, .world_size = group.size};
  auto data = std::make_shared<TextData>(text_file(flags), flags.sequence_length);

  Workload workload;
  workload.module = model.ptr();
  workload.parameters = model->parameters();
  workload.loss = [model, data, shape, seed, device = group.device](int64_t step) mutable {
    const TokenBatch batch = on_device(data->batch(shape, seed, step), device);
    return language_model_loss(model->forward(batch.tokens), batch.targets);
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), flags.learning_rate);
  return workload;
}

}  // namespace firkin::cli
