// The files of CMSC 828G's assignment 2 (University of Maryland): GPT-2's parameters and gradient times per block, and all-reduce times.
//
//   const Cmsc828gProfile imported = read_cmsc828g_profile("layer-sizes.csv", "layer-times.csv", "gpt2-large");
//   write_tensors_csv("tensors.csv", imported.profile);
//   for (const std::string& note : imported.notes) fmt::print(stderr, "{}\n", note);
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

struct Cmsc828gProfile {
  TensorProfile profile;           // float32 gradients
  std::vector<std::string> notes;  // what the reader took for granted or left out, a sentence each
};

// Sizes: a CSV file with the columns Name and "No. Params"; times: one with Name and mean (seconds). The model says which tensors a block
// has: gpt2, gpt2-medium, gpt2-large or gpt2-xl (Radford et al. 2019, table 2).
//
// Backward runs LM head, final layer norm, then the blocks from the last to the first, one after another. The mean time of each is spread
// over its tensors by bytes, in reverse registration order. "Token embedding" and "LM head" are one tied tensor, counted once; its gradient
// is complete only after its last use, at the end of backward, and so is that of the position embedding. The files of `firkin bench layers`
// may lack the head, and have times of the embeddings.
//
// Throws InputError, with file and line, when an entry is missing, unknown or there twice, has another number of parameters than the model,
// or a time is not positive and finite.
Cmsc828gProfile parse_cmsc828g_profile(std::string_view sizes_text, const std::string& sizes_file, std::string_view times_text,
                                       const std::string& times_file, const std::string& model);
Cmsc828gProfile read_cmsc828g_profile(const std::filesystem::path& sizes, const std::filesystem::path& times, const std::string& model);

// Columns: backend,world_size,total_elements,total_bytes,average_time,stdev_time; times in seconds. The average stands in for the median
// too, because the file has no other. Throws InputError with file and line for malformed input, two backends included.
AllReduceTable parse_cmsc828g_allreduce(std::string_view text, const std::string& file);
AllReduceTable read_cmsc828g_allreduce(const std::filesystem::path& path);

}  // namespace firkin
