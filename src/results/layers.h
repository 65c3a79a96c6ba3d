// Where a step's time goes, layer by layer, as a section of results.json and as CMSC 828G's files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/field.h"

namespace firkin {

// One layer, or the whole model. Samples are seconds on the slowest rank, one per watched step.
struct LayerRow {
  std::string name;
  int64_t parameters = 0;               // elements
  std::vector<double> forward_s = {};   // samples; empty when not observed
  std::vector<double> backward_s = {};  // samples; empty for a layer without parameters of its own
};

struct LayersSection {
  std::vector<LayerRow> layers = {};
  std::vector<double> forward_s = {}, backward_s = {}, optimizer_s = {};  // of the whole model; samples
  std::vector<double> watched_step_s = {}, bare_step_s = {};              // per pair
};

// {"layers": [medians], "samples": {...}}; `document` gets both.
void write_layers(const LayersSection& section, nlohmann::json& document);
LayersSection read_layers(const JsonFields& document);

// Layers, then the whole model.
Table layers_table(const LayersSection& section, Medium medium);

// layer-sizes.csv, `,Name,No. Params`: a line for each layer with parameters, "Block 3" for "blocks.3". A tied weight is listed once.
std::string layer_sizes_csv(const LayersSection& section);

// layer-times.csv, `Name,min,max,mean,std,median` in seconds: "forward", "backward" and "step" (the optimiser's) as a whole, "block_3 grad"
// for a layer's part of backward, and, which the assignment's file lacks, "block_3 forward".
std::string layer_times_csv(const LayersSection& section);

}  // namespace firkin
