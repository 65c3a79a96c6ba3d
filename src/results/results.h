// A results.json as a struct: what a run of any subcommand measured. A section that it did not measure is empty.
//
//   const Results results = read_results("firkin-out/tune/results.json");
//   results.answer->best_predicted.cap_mib;
//   write_file_atomically("copy.json", results_text(results));  // the same again
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "results/allreduce.h"
#include "results/chunks.h"
#include "results/comparison_section.h"
#include "results/layers.h"
#include "results/prediction.h"
#include "results/profile.h"
#include "results/run.h"
#include "results/steps.h"
#include "results/traces.h"
#include "results/training.h"
#include "results/tune.h"

namespace firkin {

struct Results {
  RunHead run;
  bool complete = true;  // false: the run was interrupted, or is still going on
  // tune
  std::optional<ProfileSection> profile = {};  // and bench layers
  AllReduceTable allreduce;                    // and bench allreduce
  std::optional<AlphaBeta> alpha_beta = {};
  std::optional<CalibrationSection> calibration = {};
  std::vector<CurveRow> curve = {};        // by ascending cap
  std::vector<CurveRow> dense_curve = {};  // by ascending cap, predictions only
  std::vector<StrategyRow> strategies = {};
  std::optional<TuneAnswer> answer = {};
  std::optional<StepSamples> step_samples = {};
  std::vector<std::string> notes = {};  // what else a reader has to know
  // bench allreduce, chunks, layers, step; trace
  std::optional<std::string> caches = {};  // "warm" or "cold"
  std::optional<AllReduceSamples> allreduce_samples = {};
  std::optional<MixedQueuesSection> mixed_queues = {};
  std::optional<int64_t> elements = {};  // float32, of all chunks together
  std::vector<ChunksRow> chunks = {};
  std::vector<std::vector<double>> chunk_totals_s = {};  // [chunk size][sample]
  std::optional<LayersSection> layers = {};
  std::vector<StepConfiguration> configurations = {};
  std::vector<TraceRow> traces = {};
  // train
  std::optional<TrainingSection> training = {};
  // compare
  std::optional<Comparison> comparison = {};
  // predict
  std::optional<Prediction> prediction = {};
};

nlohmann::json results_json(const Results& results);

// Throws FieldError naming the field that is missing or malformed ("results: curve[2].measured_s: missing; expected a positive number");
// the sections of an answer must be there when a complete run of `tune` is read.
Results results_from_json(const nlohmann::json& document);

// The text of a results.json. Strings that are not UTF-8 are repaired with U+FFFD.
std::string results_text(const Results& results);

// Throws InputError with file and line when the text is no JSON, repeats a key, or a section is malformed. `file`: the name that errors
// carry.
Results parse_results(std::string_view text, const std::string& file);
Results read_results(const std::filesystem::path& path);

}  // namespace firkin
