#include "job.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include "bench/environment.h"
#include "comm/backends.h"
#include "firkin/base/machine.h"
#include "firkin/comm/device.h"
#include "firkin/comm/rank_info.h"
#include "firkin/comm/run_ranks.h"
#include "model/transformer.h"
#include "workload/text_data.h"

#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace firkin::cli {

// ---- Ranks.

namespace {

int ranks_to_start(const RankFlags& flags) {
  return flags.ranks.value_or(flags.world ? 1 : 2);
}

void check_rank_flags(const RankFlags& flags) {
  if (const int ranks = ranks_to_start(flags); ranks < 1 || ranks > kMostLocalRanks) {
    throw InputError(fmt::format("--ranks {}: expected 1 to {}", ranks, kMostLocalRanks));
  }
  constexpr double kLongestTimeout = 1e6;
  if (!(flags.timeout_s > 0) || flags.timeout_s > kLongestTimeout) {
    throw InputError(fmt::format("--timeout {}: expected more than 0, and at most 11 days", format_seconds(flags.timeout_s)));
  }
  if (flags.threads < 0) throw InputError(fmt::format("--threads {}: expected 0 or more", flags.threads));
}

// ranks: as many as there are.
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

void add_run_flags(CLI::App& app, RunFlags& run, const std::string& command) {
  add_output_flags(app, run.common, command);
  add_value(app, "--seed", run.common.seed, "random seed", "Measuring");
  RankFlags& flags = run.ranks;
  app.add_option("--ranks", flags.ranks, "ranks to start on this machine, without a launcher\n(default: 2, or 1 with --world)");
  app.add_option("--link", flags.link,
                 "model this link: 1gbit, or 200mbit,1ms (latency), or\nan allreduce.csv; collectives take as long (a\nreduce-scatter or "
                 "all-gather half an all-reduce)");
  app.add_option("--world", flags.world,
                 "ranks that the link is modelled for, of which this\nmachine runs one, or --ranks (default: --ranks)");
  const char* const group = "Ranks";
  add_time(app, "--timeout", flags.timeout_s, "limit for a collective to complete: 90s, 5m")->group(group);
  add_value(app, "--device", flags.device, "cpu, or cuda with one GPU of this machine per rank;\nauto: cuda if there is a GPU", group)
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  add_value(app, "--backend", flags.backend, "c10d backend for gradients; auto: nccl if each rank\nhas a GPU of its own, else gloo", group)
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  add_value(app, "--threads", flags.threads, "compute threads per rank; 0: OMP_NUM_THREADS, or an\nequal share", group);
}

bool uses_gpus(const RankFlags& flags) {
  return flags.device == "cuda" || (flags.device == "auto" && device_count() > 0);
}

int world_size(const RankFlags& flags) {
  const auto launched = rank_info_unless_alone();
  return launched ? launched->world_size : ranks_to_start(flags);
}

int local_ranks(const RankFlags& flags) {
  const auto launched = rank_info_unless_alone();
  return launched ? launched->local_world_size : ranks_to_start(flags);
}

bool writes_results() {
  const auto info = rank_info_unless_alone();
  return info && info->rank == 0;
}

int run_on_ranks(RunFlags& run, const std::function<void(const ProcessGroup&)>& body) {
  if (!run.common.folder) claim_output_folder(run.common, writes_results());
  const RankFlags& flags = run.ranks;
  check_rank_flags(flags);
  const auto info = rank_info_unless_alone();
  const int ranks = world_size(flags);
  const std::optional<ModelledLink> link = link_of(flags, ranks);
  const GroupOptions options{.backend = flags.backend,
                             .device = device_for_rank(flags.device, info ? info->local_rank : 0),
                             .timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000)),
                             .link = link};
  choose_backend(options, *options.device);  // what is wrong with it is said once, and before any rank starts
  check_link(link, ranks, *options.device);
  if (!info) return launch_local_ranks(ranks, command_line());
  if (flags.ranks && *flags.ranks != info->world_size) {
    throw InputError(fmt::format("--ranks {}: a launcher started {} ranks; leave --ranks out", *flags.ranks, info->world_size));
  }
  set_torch_log_level();
  at::set_num_threads(flags.threads > 0 ? flags.threads : threads_per_rank(info->local_world_size));
  body(connect(*info, options));
  return 0;
}

Results begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group) {
  Results results;
  results.run = start_run(command, common);
  add_ranks(group, results.run.environment);
  return results;
}

// ---- A model, and the job of the benchmarks.

namespace {

// d_model -> --d-model
std::string flag_name(std::string_view size) {
  std::string name = fmt::format("--{}", size);
  std::ranges::replace(name, '_', '-');
  return name;
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::filesystem::path data_folder() {
  const char* named = std::getenv("FIRKIN_DATA");
  if (named && *named) {
    if (!is_folder(named)) throw InputError(fmt::format("FIRKIN_DATA={}: expected the folder with Firkin's data", named));
    return named;
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  std::filesystem::path installed = (program.parent_path() / FIRKIN_INSTALLED_DATA).lexically_normal();
  if (is_folder(installed)) return installed;
  if (is_folder(FIRKIN_SOURCE_DATA)) return FIRKIN_SOURCE_DATA;
  throw RuntimeError(fmt::format("no data folder: neither {} nor {} exists; set FIRKIN_DATA to the folder with Firkin's data",
                                 installed.string(), FIRKIN_SOURCE_DATA));
}

TensorProfile replayed_profile(const JobFlags& flags) {
  TensorProfile profile = read_tensors_csv(flags.replay);
  if (!profile.knows_forward()) profile = with_forward(profile, profile.backward_s / 2);
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

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  add_value(app, "--model", flags.model, "a named model (firkin buckets lists them) or a\n.json file")->type_name(kModelType);
  add_model_detail_flags(app, flags);
}

void add_model_detail_flags(CLI::App& app, ModelFlags& flags) {
  const char* const group = "Model";
  add_value(app, "--dtype", flags.dtype, "type of parameters and gradients", group)->check(CLI::IsMember({"fp32", "bf16"}));
  for (const ConfigSize& size : kConfigSizes) {
    const std::string name(size.name);
    const auto set = [&flags, name](const int64_t& value) { flags.sizes[name] = value; };
    app.add_option_function<int64_t>(flag_name(name), set, fmt::format("override the model's {}", name))->group(group);
  }
}

std::vector<std::string> model_flag_names() {
  std::vector<std::string> names = {"--model", "--dtype"};
  for (const ConfigSize& size : kConfigSizes) names.push_back(flag_name(size.name));
  return names;
}

at::ScalarType model_dtype(const ModelFlags& flags) {
  return flags.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

int64_t element_bytes(const ModelFlags& flags) {
  return static_cast<int64_t>(c10::elementSize(model_dtype(flags)));
}

TransformerConfig model_config(const ModelFlags& flags) {
  TransformerConfig config = resolve_model(flags.model);
  std::string changed = "--model " + flags.model;
  for (const ConfigSize& size : kConfigSizes) {
    const auto found = flags.sizes.find(std::string(size.name));
    if (found == flags.sizes.end()) continue;
    config.*size.member = found->second;
    changed += fmt::format(" {} {}", flag_name(size.name), found->second);
  }
  check_config(config, changed);
  return config;
}

TransformerConfig model_config(const ModelFlags& flags, int64_t sequence, const char* batch_flag, int64_t batch) {
  constexpr int64_t kLargest = 1 << 20;
  for (const auto& [flag, value] : {std::pair{batch_flag, batch}, {"--sequence", sequence}}) {
    if (value < 1 || value > kLargest) throw InputError(fmt::format("{} {}: expected 1 to {}", flag, value, kLargest));
  }
  const TransformerConfig config = model_config(flags);
  if (config.context_length < sequence) {
    throw InputError(fmt::format("--sequence {}: expected at most the model's context_length {}", sequence, config.context_length));
  }
  return config;
}

ModelDescription describe_model(const ModelFlags& flags) {
  const TransformerConfig config = model_config(flags);
  const std::vector<TensorSpec> tensors = tensor_specs(config);
  int64_t elements = 0;
  for (const TensorSpec& tensor : tensors) elements += tensor.numel;
  ModelDescription model;
  model.name = flags.sizes.empty() ? flags.model : flags.model + " (changed)";
  model.family = family_name(config.family);
  model.dtype = flags.dtype;
  model.tied = config.tied;
  for (const ConfigSize& size : kConfigSizes) model.sizes.emplace(size.name, config.*size.member);
  model.parameters = elements;
  model.tensors = static_cast<int64_t>(tensors.size());
  model.gradient_bytes = elements * element_bytes(flags);
  return model;
}

std::filesystem::path text_or_shipped(const std::string& file) {
  return file.empty() ? data_folder() / "text" / "cooperage.txt" : std::filesystem::path(file);
}

void add_memory_flag(CLI::App& app, std::optional<int64_t>& limit_bytes) {
  const auto why_too_much = [](const std::string& text) -> std::string {
    constexpr int64_t kMost = int64_t{1} << 50;  // 1 PiB, so that the sum over the ranks of a machine fits into 63 bits
    return parse_size(text, "--memory-limit") <= kMost ? "" : fmt::format("{}: expected at most 1024TiB", text);
  };
  add_size(app, "--memory-limit", limit_bytes, "per rank; larger runs are refused or skipped\n(default: available memory)")
      ->check(why_too_much)
      ->group("Measuring");
}

int64_t available_memory(const std::optional<int64_t>& limit_bytes, const RankFlags& ranks) {
  return limit_bytes ? *limit_bytes * local_ranks(ranks) : available_memory_bytes();
}

void check_memory(const MemoryEstimate& estimate, const std::optional<int64_t>& limit_bytes, const RankFlags& ranks) {
  if (uses_gpus(ranks) && !limit_bytes) return;
  check_training_memory(estimate, local_ranks(ranks), available_memory(limit_bytes, ranks));
}

void add_job_flags(CLI::App& app, JobFlags& flags) {
  add_model_flags(app, flags.model);
  add_value(app, "--batch", flags.batch_size, "sequences per rank and step");
  add_value(app, "--sequence", flags.sequence_length, "tokens per sequence");
  add_training_flags(app, flags);
}

void add_training_flags(CLI::App& app, JobFlags& flags) {
  app.add_option("--data", flags.data, "text file to train on, byte by byte (default: a text\nthat comes with Firkin)");
  add_value(app, "--learning-rate", flags.learning_rate, "learning rate of plain SGD", "Model");
  add_memory_flag(app, flags.memory_limit_bytes);
}

void add_replay_flags(CLI::App& app, JobFlags& flags) {
  const char* const group = "Replay";
  app.add_option("--replay", flags.replay,
                 "replay a tensors.csv instead of a model: gradients of\nits sizes at its times; computation sleeps")
      ->check(CLI::ExistingFile)
      ->group(group);
  add_value(app, "--scale-bytes", flags.replay_scale.bytes, "multiply the replay's bytes", group)->needs("--replay");
  add_value(app, "--scale-time", flags.replay_scale.time, "multiply the replay's times", group)->needs("--replay");
}

void check_replay_alone(const CLI::App& app) {
  check_alone(app, "--replay", model_flag_names());
  check_alone(app, "--replay", {"--batch", "--sequence", "--data", "--learning-rate"});
}

void check_job_flags(const JobFlags& flags) {
  if (!flags.replay.empty()) {
    replayed_profile(flags);
    return;
  }
  const TransformerConfig config = model_config(flags.model, flags.sequence_length, "--batch", flags.batch_size);
  if (!(flags.learning_rate > 0) || !std::isfinite(flags.learning_rate)) {
    throw InputError(fmt::format("--learning-rate {}: expected a positive number", flags.learning_rate));
  }
  if (config.vocab_size < TextData::kVocabSize) {
    throw InputError(
        fmt::format("--vocab-size {}: expected at least {}, one token per byte value", config.vocab_size, TextData::kVocabSize));
  }
  const std::filesystem::path file = text_or_shipped(flags.data);
  const int64_t tokens = flags.batch_size * flags.sequence_length;
  if (const TextData text(file, flags.sequence_length); tokens > text.size()) {
    throw InputError(
        fmt::format("--batch {}: {} tokens; expected at most the {} bytes of {}", flags.batch_size, tokens, text.size(), file.string()));
  }
}

void check_job(const JobFlags& flags, const RankFlags& ranks) {
  check_job_flags(flags);
  check_memory(estimate_job_memory(flags), flags.memory_limit_bytes, ranks);
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
  TransformerLM model(model_config(flags.model), at::TensorOptions(model_dtype(flags.model)));
  model->to(group.device);
  const BatchShape shape{
      .local_batch = flags.batch_size, .sequence_length = flags.sequence_length, .rank = group.rank, .world_size = group.size};
  auto data = std::make_shared<TextData>(text_or_shipped(flags.data), flags.sequence_length);

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

// ---- Strategies.

const char* const kStrategiesInHelp =
    "Strategies: none does not communicate. naive sends one tensor after another,\n"
    "after backward; flat sends all in one call after backward; overlap sends each\n"
    "tensor when its gradient is ready; bucketed sends each bucket when it is full.\n"
    "ordered sends first what the next forward needs first, and overlaps it as well;\n"
    "sharded lets each rank sum and step its part of every bucket.\n"
    "torch is PyTorch's own engine (c10d::Reducer) under the same caps.\n\n";

void add_block_flags(CLI::App& app, StepBenchOptions& steps, const char* blocks_in_help) {
  const char* const group = "Measuring";
  const CLI::Range some(1, 100000);
  add_value(app, "--blocks", steps.blocks, blocks_in_help, group)->check(CLI::Range(4, 100000));
  add_value(app, "--warmup", steps.warmup_steps, "untimed steps after each change of setting", group)->check(some);
  add_value(app, "--steps-per-block", steps.steps_per_block, "timed steps per block and setting", group)->check(some);
}

void add_strategy_flags(CLI::App& app, std::vector<std::string>& strategies, std::vector<int64_t>& caps) {
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.grouping != Grouping::kPlan) names.emplace_back(strategy.name);
  }
  add_value(app, "--strategies", strategies, "how to synchronise gradients")->delimiter(',')->check(CLI::IsMember(names));
  add_sizes(app, "--cap", caps, "bucket caps for bucketed and torch: 1MiB,25MiB");
}

double cap_in_mib(int64_t bytes) {
  for (int digits = 1; digits < std::numeric_limits<double>::max_digits10; ++digits) {
    const double shorter = std::stod(fmt::format("{:.{}g}", mib(bytes), digits));
    if (bytes_from_mib(shorter, "--cap") == bytes) return shorter;
  }
  return mib(bytes);
}

std::vector<StepSetting> make_settings(const std::vector<std::string>& strategies, const std::vector<int64_t>& caps,
                                       const RuleFlags& rule) {
  check_list("--strategies", strategies);
  std::vector<StepSetting> settings;
  for (const std::string& name : strategies) {
    DataParallelOptions options;
    options.strategy = find_strategy(name);
    options.broadcast_parameters = false;
    if (options.strategy.grouping == Grouping::kPlan) throw InputError("--strategies planned: expected a strategy that needs no plan");
    options.cap = cap_options(rule);
    if (options.strategy.grouping != Grouping::kCap) {
      settings.push_back({name, options});
      continue;
    }
    for (const int64_t bytes : caps) {
      options.cap.cap_bytes = bytes;
      const double cap_mib = cap_in_mib(bytes);
      settings.push_back({fmt::format("{} {} MiB", name, cap_mib), options, cap_mib});
    }
  }
  return settings;
}

}  // namespace firkin::cli
