#include "layer_files.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

#include "firkin/base/csv.h"
#include "firkin/stats/summary.h"

namespace firkin::cli {
namespace {

// A layer of model/ and its two names in the assignment's files; a number follows those that end in a separator.
struct Names {
  const char* ours;
  const char* in_sizes;
  const char* in_times;
};
constexpr std::array kNames = {Names{"token_embeddings", "Token embedding", "token_embedding"},
                               Names{"position_embeddings", "Position embedding", "position_embedding"},
                               Names{"blocks.", "Block ", "block_"}, Names{"ln_final", "LayerNorm final", "ln_f"},
                               Names{"lm_head", "LM head", "lm_head"}};

// Layers of other models keep their name.
std::string renamed(const std::string& layer, const char* Names::*column) {
  for (const Names& names : kNames) {
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

std::string layer_sizes_csv(const LayerProfile& profile) {
  std::string text = ",Name,No. Params\n";
  int line = 0;
  for (const LayerTimes& layer : profile.layers) {
    if (layer.parameters == 0) continue;
    text += fmt::format("{},{},{}\n", line++, csv_field(renamed(layer.name, &Names::in_sizes)), layer.parameters);
  }
  return text;
}

std::string layer_times_csv(const LayerProfile& profile) {
  std::string text = "Name,min,max,mean,std,median\n";
  append_times(text, "forward", profile.forward_s);
  for (const LayerTimes& layer : profile.layers) append_times(text, renamed(layer.name, &Names::in_times) + " forward", layer.forward_s);
  append_times(text, "backward", profile.backward_s);
  for (const LayerTimes& layer : profile.layers) append_times(text, renamed(layer.name, &Names::in_times) + " grad", layer.backward_s);
  append_times(text, "step", profile.optimizer_s);
  return text;
}

}  // namespace firkin::cli
