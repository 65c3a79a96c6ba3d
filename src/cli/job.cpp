#include "job.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <random>

#include "bench/rank_machines.h"
#include "comm/across_ranks.h"
#include "comm/backends.h"
#include "firkin/base/machine.h"
#include "firkin/comm/device.h"
#include "firkin/comm/rank_info.h"
#include "firkin/comm/run_ranks.h"
#include "workload/transformer.h"

#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace firkin::cli {

namespace {

// ranks: their real number.
std::optional<ModelledLink> link_of(const RankFlags& flags, int ranks) {
  if (!flags.link) {
    if (flags.world) throw InputError(fmt::format("--world {}: expected --link as well", *flags.world));
    return std::nullopt;
  }
  if (flags.world && *flags.world < ranks) {
    throw InputError(fmt::format("--world {}: expected at least the number of ranks, {}", *flags.world, ranks));
  }
  return parse_link(*flags.link, flags.world.value_or(ranks));
}

}  // namespace

bool can_measure() {
  return true;
}

int measure(const Measurement& measurement) {
  return std::visit([](auto* flags) { return run(*flags); }, measurement);
}

int world_size(const RankFlags& flags) {
  const auto launched = rank_info_unless_alone();
  return launched ? launched->world_size : ranks_to_start(flags);
}

int local_ranks(const RankFlags& flags) {
  const auto launched = rank_info_unless_alone();
  return launched ? launched->local_world_size : ranks_to_start(flags);
}

int run_on_ranks(RunFlags& run, const std::function<void(const ProcessGroup&)>& body) {
  const auto info = rank_info_unless_alone();
  claim_output_folder(run.common, info && info->rank == 0);
  const RankFlags& flags = run.ranks;
  const int ranks = world_size(flags);
  const std::optional<ModelledLink> link = link_of(flags, ranks);
  const GroupOptions options{.backend = flags.backend,
                             .device = device_for_rank(flags.device, info ? info->local_rank : 0),
                             .timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000)),
                             .link = link};
  choose_backend(options, *options.device);  // reports what is wrong once, before any rank starts
  check_link(link, ranks, *options.device);
  if (!info) return launch_local_ranks(ranks, command_line());
  body(begin_rank(*info, flags.ranks, flags.threads > 0 ? flags.threads : threads_per_rank(info->local_world_size), options));
  return 0;
}

Results begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group) {
  std::optional<std::string> problem;
  if (const std::string first = text_of_rank(group, command, 0); first != command) {
    problem = fmt::format("rank {} runs {}, but rank 0 {}; expected one command", group.rank, command, first);
  }
  if (const auto found = first_problem(group, problem)) throw InputError(found->text);
  Results results;
  results.run = start_run(command, common);
  add_ranks(group, results.run.environment);
  return results;
}

namespace {

std::filesystem::path text_or_shipped(const std::string& file) {
  return file.empty() ? data_folder() / "text" / "cooperage.txt" : std::filesystem::path(file);
}

constexpr int64_t kByteValues = 256;

// The bytes of a file as tokens.
at::Tensor read_tokens(const std::filesystem::path& file, int64_t sequence_length) {
  std::string text = read_file(file);
  const auto bytes = static_cast<int64_t>(text.size());
  if (bytes <= sequence_length) {
    throw InputError(fmt::format("{}: {} bytes of text; expected more than a sequence of {}", file.string(), bytes, sequence_length));
  }
  return at::from_blob(text.data(), {bytes}, at::kByte).clone();
}

// This rank's part of a step's global batch: sequences, each with the byte behind it, at places drawn from seed and
// step.
at::Tensor draw_windows(const at::Tensor& text, const JobFlags& flags, int rank, uint64_t seed, int64_t step) {
  std::seed_seq seeds{seed, seed >> 32, static_cast<uint64_t>(step)};
  std::mt19937_64 random(seeds);
  random.discard(static_cast<uint64_t>(rank * flags.batch_size));
  at::Tensor windows = at::empty({flags.batch_size, flags.sequence_length + 1}, at::kLong);
  for (int64_t row = 0; row < flags.batch_size; ++row) {
    const auto place = static_cast<int64_t>(random() % static_cast<uint64_t>(text.numel() - flags.sequence_length));
    windows[row].copy_(text.narrow(0, place, flags.sequence_length + 1));
  }
  return windows;
}

TensorProfile replayed_profile(const JobFlags& flags) {
  TensorProfile profile = read_tensors_csv(flags.replay);
  if (!profile.knows_forward()) profile = with_forward(profile, profile.backward_s / 2);
  return scaled(profile, {.bytes = flags.scale_bytes, .time = flags.scale_time});
}

ModelDescription describe_replay(const JobFlags& flags) {
  const TensorProfile profile = replayed_profile(flags);
  ModelDescription model;
  model.name = fmt::format("replay of {}", std::filesystem::path(flags.replay).filename().string());
  if (flags.scale_bytes != 1) model.name += fmt::format(", bytes x {}", flags.scale_bytes);
  if (flags.scale_time != 1) model.name += fmt::format(", times x {}", flags.scale_time);
  model.dtype = "fp32";
  model.tensors = static_cast<int64_t>(profile.bytes.size());
  model.gradient_bytes = profile.total_bytes();
  model.parameters = *model.gradient_bytes / kFloatBytes;
  return model;
}

}  // namespace

int64_t available_memory(const std::optional<int64_t>& limit_bytes, const RankFlags& ranks) {
  return limit_bytes ? *limit_bytes * local_ranks(ranks) : available_memory_bytes();
}

void check_job_flags(const JobFlags& flags) {
  if (!flags.replay.empty()) {
    replayed_profile(flags);
    return;
  }
  const TransformerConfig config = model_config(flags.model);
  if (config.vocab_size < kByteValues) {
    throw InputError(fmt::format("--vocab-size {}: expected at least {}, one token per byte value", config.vocab_size, kByteValues));
  }
  const std::filesystem::path file = text_or_shipped(flags.data);
  const int64_t tokens = flags.batch_size * flags.sequence_length, bytes = read_tokens(file, flags.sequence_length).numel();
  if (tokens > bytes) {
    throw InputError(
        fmt::format("--batch {}: {} tokens; expected at most the {} bytes of {}", flags.batch_size, tokens, bytes, file.string()));
  }
}

void check_job(const JobFlags& flags, const RankFlags& ranks) {
  check_job_flags(flags);
  const bool on_gpus = ranks.device == "cuda" || (ranks.device == "auto" && device_count() > 0);
  if (on_gpus && !flags.memory_limit_bytes) return;
  check_training_memory(estimate_job_memory(flags), local_ranks(ranks), available_memory(flags.memory_limit_bytes, ranks));
}

MemoryEstimate estimate_job_memory(const JobFlags& flags) {
  if (flags.replay.empty()) {
    return estimate_training_memory(model_config(flags.model), flags.batch_size, flags.sequence_length, element_bytes(flags.model));
  }
  const int64_t bytes = replayed_profile(flags).total_bytes();
  return {.parameters = bytes, .gradients = bytes};
}

ModelDescription describe_job(const JobFlags& flags) {
  if (!flags.replay.empty()) return describe_replay(flags);
  ModelDescription model = describe_model(flags.model);
  model.batch_size = flags.batch_size;
  model.sequence_length = flags.sequence_length;
  model.text = text_or_shipped(flags.data).filename().string();
  return model;
}

Workload make_job(const JobFlags& flags, const ProcessGroup& group, uint64_t seed) {
  if (!flags.replay.empty()) return make_replay_workload(replayed_profile(flags), group.device);
  torch::manual_seed(seed);
  TransformerLM model(model_config(flags.model), at::TensorOptions(flags.model.dtype == "bf16" ? at::kBFloat16 : at::kFloat));
  model->to(group.device);
  const at::Tensor text = read_tokens(text_or_shipped(flags.data), flags.sequence_length);

  Workload workload;
  workload.module = model.ptr();
  workload.parameters = model->parameters();
  workload.loss = [model, text, flags, seed, rank = group.rank, device = group.device](int64_t step) mutable {
    const at::Tensor windows = draw_windows(text, flags, rank, seed, step).to(device);
    return language_model_loss(model->forward(windows.narrow(1, 0, flags.sequence_length)), windows.narrow(1, 1, flags.sequence_length));
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.01);
  return workload;
}

std::vector<StepSetting> make_settings(const std::vector<std::string>& strategies, const std::vector<int64_t>& caps,
                                       const CapOptions& rule) {
  std::vector<StepSetting> settings;
  for (const std::string& name : strategies) {
    DataParallelOptions options;
    options.strategy = find_strategy(name);
    options.broadcast_parameters = false;
    if (options.strategy.grouping == Grouping::kPlan) throw InputError("--strategies planned: expected a strategy that needs no plan");
    options.cap = rule;
    if (options.strategy.grouping != Grouping::kCap) {
      settings.push_back({name, options});
      continue;
    }
    for (const int64_t bytes : caps) {
      options.cap.cap_bytes = bytes;
      settings.push_back({fmt::format("{} {} MiB", name, short_mib(bytes)), options, bytes});
    }
  }
  return settings;
}

}  // namespace firkin::cli
