#include "results/layers.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

#include "firkin/base/csv.h"
#include "firkin/stats/summary.h"
#include "results/profile.h"
#include "results/run.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr const char* kLayers = "layers";

Value median_if_any(const std::vector<double>& seconds) {
  return seconds.empty() ? Value() : Value(median(seconds));
}

constexpr const char* kBackward = kBackwardKey;
constexpr const char* kOptimizer = "optimizer_s";

constexpr Field<LayerRow> kLayerFields[] = {
    {kTensorName, &LayerRow::name, Unit::kText, "layer"},
    {"parameters", &LayerRow::parameters, Unit::kCount, "parameters"},
    {kForwardKey, [](const LayerRow& row) { return median_if_any(row.forward_s); }, Unit::kDifference, "forward"},
    {kBackward, [](const LayerRow& row) { return median_if_any(row.backward_s); }, Unit::kDifference, "backward"}};

constexpr Field<LayerRow> kLayerSamples[] = {{kLayerFields[0].key, &LayerRow::name},
                                             {kForwardKey, &LayerRow::forward_s, Unit::kPlain},
                                             {kBackward, &LayerRow::backward_s, Unit::kPlain}};

constexpr Field<LayersSection> kSectionSamples[] = {{kForwardKey, &LayersSection::forward_s, Unit::kPlain},
                                                    {kBackward, &LayersSection::backward_s, Unit::kPlain},
                                                    {kOptimizer, &LayersSection::optimizer_s, Unit::kPlain},
                                                    {"watched_step_s", &LayersSection::watched_step_s, Unit::kPlain},
                                                    {"bare_step_s", &LayersSection::bare_step_s, Unit::kPlain}};

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

void write_layers(const LayersSection& section, json& document) {
  document[kLayers] = rows_to_json<LayerRow>(kLayerFields, section.layers);
  json samples = to_json<LayersSection>(kSectionSamples, section);
  samples[kLayers] = rows_to_json<LayerRow>(kLayerSamples, section.layers);
  document[kSamplesKey] = samples;
  if (!section.forward_s.empty()) document[kForwardKey] = median(section.forward_s);
  if (!section.backward_s.empty()) document[kBackward] = median(section.backward_s);
  if (!section.optimizer_s.empty()) document[kOptimizer] = median(section.optimizer_s);
}

LayersSection read_layers(const JsonFields& document) {
  const JsonFields samples = document.object(kSamplesKey);
  LayersSection section = from_json<LayersSection>(kSectionSamples, samples);
  const std::vector<JsonFields> with_samples = samples.objects(kLayers);
  for (const JsonFields& fields : document.objects(kLayers)) {
    const size_t i = section.layers.size();
    if (i == with_samples.size()) fields.fail(kLayerFields[0].key, "no samples", "samples for every layer");
    LayerRow row = from_json<LayerRow>(kLayerSamples, with_samples[i]);
    row.parameters = fields.integer(kLayerFields[1].key);
    section.layers.push_back(std::move(row));
  }
  return section;
}

Table layers_table(const LayersSection& section, Medium medium) {
  std::vector<LayerRow> rows = section.layers;
  LayerRow all{.name = "all", .parameters = 0, .forward_s = section.forward_s, .backward_s = section.backward_s};
  for (const LayerRow& row : rows) all.parameters += row.parameters;
  rows.push_back(std::move(all));
  return table_of<LayerRow>(kLayerFields, rows, medium, "Median time of every layer");
}

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

}  // namespace firkin
