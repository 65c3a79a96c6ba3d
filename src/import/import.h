// Other people's measurements, as a profile and as all-reduce times. What a file is follows from what it holds.
//
//   const Imported imported = import_files({"layer-sizes.csv", "layer-times.csv", "allreduce.csv"});
//   if (imported.profile) write_tensors_csv("tensors.csv", *imported.profile);
//   for (const std::string& note : imported.notes) fmt::print(stderr, "{}\n", note);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

enum class ImportFormat {
  kCmsc828gSizes,      // CMSC 828G's assignment 2 (University of Maryland): parameters of GPT-2's blocks
  kCmsc828gTimes,      // its gradient times
  kCmsc828gAllReduce,  // its all-reduce times
  kNcclTests,          // what all_reduce_perf prints, or writes with -J
};

std::string name_of(ImportFormat format);  // "layer sizes of CMSC 828G", ...

// By the header of a CSV file, the leading { of JSON, or a comment (#) or log line (NCCL) as nccl-tests prints them. Throws InputError,
// with file and line, which lists what is read.
ImportFormat recognize_import(std::string_view text, const std::string& file);

struct ImportOptions {
  std::string model = {};  // of layer sizes and times: gpt2, gpt2-medium, gpt2-large or gpt2-xl; empty: the one with as many blocks
  int64_t world_size = 0;  // of nccl-tests' output, which does not say it: at least 2
  bool in_place = false;   // of nccl-tests' output: the in-place columns, rather than the out-of-place ones
};

struct Imported {
  std::optional<TensorProfile> profile = {};  // float32 gradients
  AllReduceTable table = {};                  // of all files that hold all-reduce times
  std::string model = {};                     // whose tensors these are
  std::vector<std::string> notes = {};        // what was taken for granted or left out, a sentence each
  std::vector<ImportFormat> formats = {};     // of each file
};

// The files in any order. Throws InputError, as the functions below, and when layer sizes come without layer times or the contrary, or one
// of them twice.
Imported import_files(const std::vector<std::filesystem::path>& files, const ImportOptions& options = {});

// Sizes: a CSV file with the columns Name and "No. Params"; times: one with Name and mean (seconds). The model says which tensors a block
// has (Radford et al. 2019, table 2).
//
// Backward runs LM head, final layer norm, then the blocks from the last to the first, one after another. The mean time of each is spread
// over its tensors by bytes, in reverse registration order. "Token embedding" and "LM head" are one tied tensor, counted once; its gradient
// is complete only after its last use, at the end of backward, and so is that of the position embedding. The files of `firkin bench layers`
// may lack the head, and have times of the embeddings.
//
// Throws InputError, with file and line, when an entry is missing, unknown or there twice, has another number of parameters than the model,
// or a time is not positive and finite.
Imported parse_cmsc828g_profile(std::string_view sizes_text, const std::string& sizes_file, std::string_view times_text,
                                const std::string& times_file, const std::string& model = {});

// Columns: backend,world_size,total_elements,total_bytes,average_time,stdev_time; times in seconds. The average stands in for the median
// too, because the file has no other. Throws InputError with file and line for malformed input, two backends included.
AllReduceTable parse_cmsc828g_allreduce(std::string_view text, const std::string& file);

// A text that starts with { is taken for JSON (format version 1 to 3), any other for the printed table, whose header says where its columns
// are. The time, an average over iterations, stands in for the median. Comments (#), the log lines of NCCL itself and sizes of 0 bytes are
// left out, the latter two with a note.
//
// Throws InputError, with file and (in a table) line, for any other line, a time that is not positive or is CPU time, wrong elements,
// another collective than all_reduce_perf, and a world size that contradicts the ratio of bus to algorithm bandwidth, 2 (n - 1) / n.
Imported parse_nccl_tests(std::string_view text, const std::string& file, const ImportOptions& options);

}  // namespace firkin
