// Other people's measurements, as a profile and as all-reduce times. A file's format is recognised by its content.
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

#include "firkin/plan/measurements.h"
#include "trace_steps.h"
#include "traced_run.h"

namespace firkin {

enum class ImportFormat {
  kCmsc828gSizes,  // CMSC 828G's assignment 2 (University of Maryland): parameters of GPT-2's blocks
  kCmsc828gTimes,  // its gradient times
  kAllReduceCsv,   // all-reduce times in CSV: Firkin's, that course's, others'
  kBenchmarkLog,   // what all_reduce_perf, osu_allreduce or IMB-MPI1 print
  kNcclInspector,  // what NCCL's Inspector writes, of all ranks (nccl_inspector.h)
  kProfilerTrace,  // torch.profiler's, zipped or not: one rank's, or several of one run (profiler_trace.h)
};

std::string name_of(ImportFormat format);  // "layer sizes of CMSC 828G", ...

// The format whose mark the text holds. Throws InputError, with file and line, which lists the formats, if it is none.
ImportFormat recognize_import(std::string_view text, const std::string& file);

struct ImportOptions {
  int64_t world_size = 0;       // for all-reduce times that do not state it; 0: such times are refused
  std::string collective = {};  // "all_reduce": takes times that do not state theirs for all-reduces; empty: refuses them
  bool in_place = false;        // takes in-place times rather than out-of-place ones if a file has both
  // Takes rows of this element type, as the file names it; empty: float32, or the only one.
  std::string dtype = {};
  std::vector<std::string> where = {};      // COLUMN=VALUE, which the rows of a CSV file must have
  std::optional<GradientSizes> sizes = {};  // for traces without recorded shapes
};

struct Imported {
  std::optional<TensorProfile> profile = {};  // float32 gradients
  AllReduceTable table = {};                  // from all files with all-reduce times
  std::string model = {};                     // the model whose tensors these are
  std::vector<std::string> notes = {};        // what was assumed or left out, a sentence each
  std::vector<ImportFormat> formats = {};     // one per file
  std::optional<TracedRun> traced = {};       // what traces say about their run
};

// Reads files, given in any order. Throws InputError as the functions below, when layer sizes come without layer times or
// vice versa, and when one of them comes twice.
Imported import_files(const std::vector<std::filesystem::path>& files, const ImportOptions& options = {});

// Sizes: a CSV file with the columns Name and "No. Params"; times: one with Name and mean (seconds). GPT-2 of as many
// blocks says which tensors these have (Radford et al. 2019, table 2).
//
// Backward runs LM head, final layer norm, then the blocks from the last to the first, one after another. The mean time
// of each is spread over its tensors by bytes, in reverse registration order. "Token embedding" and "LM head" are one
// tied tensor, counted once; its gradient is complete only after its last use, at the end of backward, and so is that
// of the position embedding.
//
// Throws InputError, with file and line, when an entry is missing, unknown or there twice, has another number of
// parameters than the model, or a time is not positive and finite.
Imported parse_cmsc828g_profile(std::string_view sizes_text, const std::string& sizes_file, std::string_view times_text,
                                const std::string& times_file);

// All-reduce times. An average, in most formats, stands in for the median. Rows of other collectives, element types and
// operations, of 0 bytes and of a single rank are left out, which the notes say. Both throw InputError, with file and
// line, if nothing is left, the collective or the number of ranks is not stated, a size comes twice for as many ranks,
// or a time or size is impossible.

// Firkin's own allreduce.csv, strictly; or with a column of sizes (bytes, size_mib), one of times (time_us, time_ms,
// time_s; time_us_oop and time_us_ip) and perhaps ranks, type and collective; or CMSC 828G's. Also throws if a column of
// words has two values, unless `where` chooses one.
Imported parse_allreduce_times(std::string_view text, const std::string& file, const ImportOptions& options);

// A log of nccl-tests, rccl-tests, osu_allreduce, IMB-MPI1 or oneCCL's benchmark, with one or more tables. The number of
// ranks is that of the listed devices (nccl-tests) or processes (IMB-MPI1, oneCCL). Also throws for columns that it does
// not know, for rows that other output cut, for results that are wrong or contradict an all-reduce, and for bandwidths
// that contradict size and time, or the number of ranks.
Imported parse_benchmark_log(std::string_view text, const std::string& file, const ImportOptions& options);

// ---- Clusters whose all-reduce times others have published (data/).
//
//   const PublishedTimes times = read_cluster("aws-p4de-16", data_folder);

struct PublishedTimes {
  std::string title;       // "AWS p4de.24xlarge, 8 A100 each, EFA"
  std::string gpu;         // one of kAccelerators
  AllReduceTable table;    // if both were measured, times of in-place all-reduces, since DDP reduces buckets in place
  int64_t world_size = 0;  // the number at the end of the name; 0 if there is none
};

// `name`: a cluster in data/README.md, alone or with a number of ranks behind it. Throws InputError, which lists the
// names, for any other, and whatever import_files() throws.
PublishedTimes read_cluster(const std::string& name, const std::filesystem::path& data_folder);

}  // namespace firkin
