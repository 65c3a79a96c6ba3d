// layer-sizes.csv and layer-times.csv, in the columns and names of CMSC 828G's assignment 2.
#pragma once

#include <string>

#include "bench/layer_bench.h"

namespace firkin::cli {

// `,Name,No. Params`: a line for each layer with parameters, "Block 3" for "blocks.3". A tied weight is listed once.
std::string layer_sizes_csv(const LayerProfile& profile);

// `Name,min,max,mean,std,median` in seconds: "forward", "backward" and "step" (the optimiser's) as a whole, "block_3 grad" for a layer's
// part of backward, and, which the assignment's file lacks, "block_3 forward".
std::string layer_times_csv(const LayerProfile& profile);

}  // namespace firkin::cli
