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

MixedQueuesSection mixed_queues_section(const std::vector<double>& ratios) {
  return {.queues = static_cast<int64_t>(ratios.size()), .ratio = median(ratios), .ratio_ci = median_interval(ratios)};
}

std::string mixed_queues_note(const MixedQueuesSection& queues) {
  return fmt::format("queued in mixed sizes, calls take {:.2f} times ({:.2f} to {:.2f}) as long as median and gap predict.", queues.ratio,
                     queues.ratio_ci->low, queues.ratio_ci->high);
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

// ---- Times of ranks.

namespace {

constexpr const char* kExpectedTimes = "a results.json with samples, or a CSV file with a column 'seconds'";
constexpr const char* kRawSteps = "raw_step_s_by_rank";
constexpr const char* kSetting = "none";  // the strategy that communicates nothing

RankTimes times_of_csv(std::string_view text, const std::string& file) {
  const CsvTable table = parse_csv(text, file, {.required = {"seconds"}, .optional = {"rank"}});
  if (table.rows() == 0) table.fail_at_end("no times; expected lines of seconds");
  std::map<int64_t, std::vector<double>> by_rank;
  for (size_t row = 0; row < table.rows(); ++row) {
    const double seconds = table.number(row, "seconds");
    if (const char* expected = expected_of_measured(seconds)) table.fail(row, fmt::format("seconds is {}; expected {}", seconds, expected));
    by_rank[table.has("rank") ? table.integer(row, "rank") : 0].push_back(seconds);
  }
  RankTimes times;
  for (auto& [rank, seconds] : by_rank) {
    if (!times.empty() && seconds.size() != times[0].size()) {
      table.fail_at_end(fmt::format("rank {} has {} times; expected {}, one per step, as rank {} has", rank, seconds.size(),
                                    times[0].size(), by_rank.begin()->first));
    }
    times.push_back(std::move(seconds));
  }
  return times;
}

RankTimes times_of_samples(const nlohmann::json& document) {
  const JsonFields samples = JsonFields(document, "").object("samples");
  const auto settings = samples.get<std::vector<std::string>>("settings");
  const auto raw = samples.get<std::vector<std::vector<std::vector<double>>>>(kRawSteps);
  const auto setting = static_cast<size_t>(std::ranges::find(settings, kSetting) - settings.begin());
  if (setting >= settings.size() || setting >= raw.size()) samples.fail("settings", "no times of the setting 'none'", kExpectedTimes);
  if (raw[setting].empty() || raw[setting][0].empty()) samples.fail(kRawSteps, "no times", kExpectedTimes);
  RankTimes times(raw[setting][0].size());
  for (size_t step = 0; step < raw[setting].size(); ++step) {
    const std::string place = fmt::format("{}[{}][{}]", kRawSteps, setting, step);
    const std::vector<double>& ranks = raw[setting][step];
    if (ranks.size() != times.size()) samples.fail(place, fmt::format("times of {} ranks", ranks.size()), "as many as in the first step");
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (const char* expected = expected_of_measured(ranks[rank])) samples.fail(place, fmt::format("a time is {}", ranks[rank]), expected);
      times[rank].push_back(ranks[rank]);
    }
  }
  return times;
}

}  // namespace

RankTimes parse_rank_times(std::string_view text, const std::string& file) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return parse_document(text, file, kExpectedTimes, times_of_samples);
  return times_of_csv(text, file);
}

RankTimes read_rank_times(const std::filesystem::path& path) {
  return parse_rank_times(read_text_file(path, kLongestJsonLine, kExpectedTimes), path.string());
}

// ---- What medians do not show.

namespace {

using Series = std::vector<std::vector<double>>;

template <class Row>
void mark(Row& row, const std::string& name, const SettingFit& fit, std::vector<std::string>& notes) {
  row.outliers = static_cast<int64_t>(fit.outliers.size());
  if (!fit.modes) return;
  row.modes_s = Interval{fit.modes->low, fit.modes->high};
  notes.push_back(fmt::format("Samples of {} cluster around {} and around {} ({} of them); the median lies in one of the two clusters.",
                              name, display_seconds(fit.modes->low), display_seconds(fit.modes->high),
                              display_percent(fit.modes->high_share)));
}

// One series a row, in the order of the rows.
template <class Row, class Name>
void mark_series(std::vector<Row>& rows, const Series& samples, const Name& name_of_row, std::vector<std::string>& notes) {
  for (size_t i = 0; i < std::min(rows.size(), samples.size()); ++i) {
    if (samples[i].empty()) continue;
    SettingFit alone;
    alone.outliers = find_outliers(samples[i]);
    alone.modes = find_two_modes(samples[i]);
    mark(rows[i], name_of_row(rows[i]), alone, notes);
  }
}

// Strategies, then caps, in the order of the samples; nothing where there are no samples of each.
void mark_steps(std::vector<StrategyRow>& strategies, std::vector<CurveRow>& curve, const Series& step_s, const std::string& place,
                std::vector<std::string>& notes) {
  if (step_s.empty() || step_s.size() != strategies.size() + curve.size()) return;
  const BlockFit fit = fit_blocks(step_s);
  for (size_t i = 0; i < strategies.size(); ++i) mark(strategies[i], place + exact_setting_name(strategies[i]), fit[i], notes);
  for (size_t i = 0; i < curve.size(); ++i) {
    mark(curve[i], fmt::format("{}{:.6g} MiB", place, curve[i].cap_mib), fit[strategies.size() + i], notes);
  }
}

}  // namespace

void mark_sample_shapes(Results& results) {
  std::vector<std::string>& notes = results.notes;
  std::vector<CurveRow> no_curve;
  if (results.step_samples) {
    const Series& step_s = results.step_samples->step_s;
    mark_steps(results.strategies, step_s.size() == results.strategies.size() ? no_curve : results.curve, step_s, "", notes);
  }
  for (StepConfiguration& configuration : results.configurations) {
    mark_steps(configuration.strategies, no_curve, configuration.samples.step_s, name_of(configuration.model) + ": ", notes);
  }
  if (results.allreduce_samples) {
    mark_series(
        results.allreduce, results.allreduce_samples->isolated_s, [](const AllReduceRow& row) { return format_bytes(row.bytes); }, notes);
  }
  mark_series(
      results.chunks, results.chunk_totals_s, [](const ChunksRow& row) { return format_bytes(row.chunk_bytes); }, notes);
  mark_series(
      results.collectives, results.collective_samples_s,
      [](const CollectiveRow& row) { return fmt::format("{} of {}", row.collective, format_bytes(row.bytes)); }, notes);
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
