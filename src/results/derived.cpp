// What is derived from results: settings for other tools, files of a course, ranks' times, what medians do not show.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"
#include "results/field.h"
#include "results/results.h"

namespace firkin {

Table profile_table(const TensorProfile& profile) {
  Table table{
      "Gradients in the order in which they become ready", {{"Tensor", false}, {"Gradient"}, {"Ready after"}, {"Ready so far"}}, {}};
  int64_t total = 0;
  for (size_t i = 0; i < profile.names.size(); ++i) {
    total += profile.bytes[i];
    table.rows.push_back({{profile.names[i], format_bytes(profile.bytes[i]), display_seconds(profile.ready_s[i]), format_bytes(total)}});
  }
  return table;
}

std::string setting_name(const StrategyRow& row) {
  return row.cap_mib ? fmt::format("{} {} MiB", row.strategy, display_cap(*row.cap_mib)) : row.strategy;
}

std::string exact_setting_name(const StrategyRow& row) {
  return row.cap_mib ? fmt::format("{} {:.6g} MiB", row.strategy, *row.cap_mib) : row.strategy;
}

// The files of CMSC 828G's assignment.

namespace {

// A layer of model/ and its two names in the assignment's files; a number follows those that end in a separator.
struct LayerNames {
  const char* ours;
  const char* in_sizes;
  const char* in_times;
};
constexpr std::array kNames = {LayerNames{"token_embeddings", "Token embedding", "token_embedding"},
                               LayerNames{"position_embeddings", "Position embedding", "position_embedding"},
                               LayerNames{"blocks.", "Block ", "block_"}, LayerNames{"ln_final", "LayerNorm final", "ln_f"},
                               LayerNames{"lm_head", "LM head", "lm_head"}};

// Layers of other models keep their name.
std::string renamed(const std::string& layer, const char* LayerNames::*column) {
  for (const LayerNames& names : kNames) {
    const std::string ours = names.ours;
    if (layer == ours || (ours.ends_with('.') && layer.starts_with(ours))) return names.*column + layer.substr(ours.size());
  }
  return layer;
}

void append_times(std::string& text, const std::string& name, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  const Summary time = summarize(seconds);
  fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{}\n", csv_field(name), time.min, time.max, time.mean, time.stdev, time.median);
}

}  // namespace

std::string layer_sizes_csv(const LayersSection& section) {
  std::string text = ",Name,No. Params\n";
  int line = 0;
  for (const LayerRow& layer : section.layers) {
    if (layer.parameters == 0) continue;
    text += fmt::format("{},{},{}\n", line++, csv_field(renamed(layer.name, &LayerNames::in_sizes)), layer.parameters);
  }
  return text;
}

std::string layer_times_csv(const LayersSection& section) {
  std::string text = "Name,min,max,mean,std,median\n";
  append_times(text, "forward", section.forward_s);
  for (const LayerRow& layer : section.layers) append_times(text, renamed(layer.name, &LayerNames::in_times) + " forward", layer.forward_s);
  append_times(text, "backward", section.backward_s);
  for (const LayerRow& layer : section.layers) append_times(text, renamed(layer.name, &LayerNames::in_times) + " grad", layer.backward_s);
  append_times(text, "step", section.optimizer_s);
  return text;
}

// ---- Settings to paste.

std::vector<PasteSetting> paste_settings(int64_t cap_bytes, int64_t element_bytes, const std::vector<double>& plan_caps_mib) {
  constexpr size_t kLongestPlan = 64;
  const std::string cap = fmt::format("{:.6g}", mib(cap_bytes));
  const int64_t elements = std::max<int64_t>(1, cap_bytes / element_bytes);
  std::vector<PasteSetting> settings = {
      {"PyTorch", fmt::format("DistributedDataParallel(model, bucket_cap_mb={})", cap), "MiB; fractions work"},
      {"Transformers", fmt::format("TrainingArguments(ddp_bucket_cap_mb={})", cap),
       "MiB; whole MiB as a command-line flag; 25 counts as not given"},
      {"Accelerate", fmt::format("DistributedDataParallelKwargs(bucket_cap_mb={})", cap), "MiB; 25 counts as not given"},
      {"Lightning", fmt::format("DDPStrategy(bucket_cap_mb={})", cap), "MiB"},
      {"DeepSpeed", fmt::format("\"zero_optimization\": {{\"reduce_bucket_size\": {}}}", elements),
       fmt::format("elements of {} bytes; ZeRO stages 1 to 3, with overlap_comm", element_bytes)},
      {"Megatron-LM", fmt::format("--overlap-grad-reduce --ddp-bucket-size {}", elements),
       fmt::format("elements of {} bytes", element_bytes)},
      {"Horovod", fmt::format("HOROVOD_FUSION_THRESHOLD={}", cap_bytes), "bytes; an upper bound, not a plan"}};
  if (!plan_caps_mib.empty() && plan_caps_mib.size() <= kLongestPlan) {
    settings.insert(
        settings.begin() + 1,
        {"PyTorch, best plan", fmt::format("DistributedDataParallel(model, bucket_cap_mb_list=[{}])", fmt::join(plan_caps_mib, ", ")),
         "MiB; from 2.11; for gradients of one dtype on one device; in effect from the second step on, not with find_unused_parameters"});
  }
  return settings;
}

// Sources: Megatron-LM, megatron/training/arguments.py and core/distributed/param_and_grad_buffer.py (parameters are
// gathered by the buckets of the gradients); DeepSpeed 0.19.6, deepspeed/runtime/zero/config.py and stage_1_and_2.py
// (both sizes are elements, the gather's even; stage 1 reduces after backward unless told to overlap; by default each
// bucket is all-reduced; the gather follows the step), and runtime/utils.py (where torch has all_gather_into_tensor,
// one call gathers a whole group).
std::vector<PasteSetting> sharded_settings(const PredictedSharded& sharded, int64_t cap_bytes, int64_t element_bytes) {
  const std::string elements = fmt::format("elements of {} bytes", element_bytes);
  return {
      {"Megatron-LM, sharded",
       fmt::format("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size {}",
                   sharded.ddp_bucket_size),
       elements + "; one size for reduce-scatter and all-gather"},
      {"DeepSpeed, sharded",
       fmt::format(
           "\"zero_optimization\": {{\"stage\": 1, \"overlap_comm\": true, \"reduce_bucket_size\": {}, \"allgather_bucket_size\": {}}}",
           std::max<int64_t>(1, cap_bytes / element_bytes), sharded.allgather_bucket_size),
       elements + "; buckets are all-reduced, so the first is the cap for that; nothing hides the gather, one call per group (the second "
                  "counts only where torch lacks all_gather_into_tensor)"}};
}

}  // namespace firkin
