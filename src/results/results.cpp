#include "results/results.h"

#include <fmt/format.h>

#include "firkin/base/file.h"
#include "firkin/base/json_text.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr const char* kExpected = "the results.json of a subcommand";
constexpr const char* kProfile = "profile";
constexpr const char* kAllReduce = "allreduce";
constexpr const char* kCalibration = "calibration";
constexpr const char* kDenseCurve = "dense_curve";
constexpr const char* kMixedQueues = "mixed_queues";
constexpr const char* kChunks = "chunks";
constexpr const char* kConfigurations = "configurations";
constexpr const char* kTraces = "traces";
constexpr const char* kTraining = "training";
constexpr const char* kComparison = "comparison";
constexpr std::string_view kTuneCommand = "tune", kLayersCommand = "bench-layers", kAllReduceCommand = "bench-allreduce",
                           kChunksCommand = "bench-chunks";

constexpr Field<Results> kResultsFields[] = {{"caches", &Results::caches},
                                             {"elements", &Results::elements, Unit::kCount},
                                             {"notes", &Results::notes},
                                             {"complete", &Results::complete}};

void write_tune(const Results& results, json& document) {
  if (results.profile) document[kProfile] = profile_json(*results.profile);
  if (!results.allreduce.empty()) document[kAllReduce] = allreduce_json(results.allreduce);
  if (results.alpha_beta) document[kAlphaBetaKey] = alpha_beta_json(*results.alpha_beta);
  if (results.calibration) document[kCalibration] = calibration_json(*results.calibration);
  if (!results.curve.empty()) document[kCurveKey] = curve_json(results.curve);
  if (!results.dense_curve.empty()) document[kDenseCurve] = curve_json(results.dense_curve);
  if (!results.strategies.empty()) document[kStrategiesKey] = strategies_json(results.strategies);
  if (results.answer) write_answer(*results.answer, document);
  if (results.step_samples) document[kSamplesKey] = samples_json(*results.step_samples);
}

void read_tune(const JsonFields& document, Results& results) {
  const bool answers = results.run.command == kTuneCommand && results.complete;
  if (const auto fields = document.maybe_object(kProfile)) results.profile = read_profile(*fields);
  results.allreduce = read_allreduce(document.maybe_objects(kAllReduce));
  if (const auto fields = document.maybe_object(kAlphaBetaKey)) results.alpha_beta = read_alpha_beta(*fields);
  if (const auto fields = document.maybe_object(kCalibration)) results.calibration = read_calibration(*fields);
  const std::vector<JsonFields> curve = answers ? document.objects(kCurveKey) : document.maybe_objects(kCurveKey);
  if (answers) {
    for (const JsonFields& row : curve) require_times(row);
  }
  if (answers && curve.empty()) document.fail(kCurveKey, "empty", "at least one cap");
  results.curve = read_curve(curve);
  results.dense_curve = read_curve(document.maybe_objects(kDenseCurve));
  results.strategies = read_strategies(answers ? document.objects(kStrategiesKey) : document.maybe_objects(kStrategiesKey));
  if (answers) results.answer = read_answer(document);
}

// What the samples are of depends on the command.
void read_samples(const JsonFields& document, Results& results) {
  const auto samples = document.maybe_object(kSamplesKey);
  if (!samples) return;
  const std::string& command = results.run.command;
  if (command == kLayersCommand) return;  // with the layers
  if (command == kAllReduceCommand) {
    results.allreduce_samples = read_allreduce_samples(*samples);
  } else if (command == kChunksCommand) {
    results.chunk_totals_s = samples->maybe_series(kChunkTotals);
  } else {
    results.step_samples = read_step_samples(*samples);
  }
}

}  // namespace

json results_json(const Results& results) {
  json document = to_json<Results>(kResultsFields, results);
  if (results.notes.empty()) document.erase(kResultsFields[2].key);
  write_run(results.run, document);
  write_tune(results, document);
  if (results.prediction) write_prediction(*results.prediction, document);
  if (results.allreduce_samples) document[kSamplesKey] = samples_json(*results.allreduce_samples);
  if (results.mixed_queues) document[kMixedQueues] = mixed_queues_json(*results.mixed_queues);
  if (!results.chunks.empty()) document[kChunks] = chunks_json(results.chunks);
  if (!results.chunk_totals_s.empty()) document[kSamplesKey][kChunkTotals] = results.chunk_totals_s;
  if (results.layers) write_layers(*results.layers, document);
  if (!results.configurations.empty()) document[kConfigurations] = configurations_json(results.configurations);
  if (!results.traces.empty()) document[kTraces] = traces_json(results.traces);
  if (results.training) document[kTraining] = training_json(*results.training);
  if (results.comparison) document[kComparison] = comparison_json(*results.comparison);
  return document;
}

Results results_from_json(const json& document) {
  const JsonFields fields(document, "");
  Results results;
  results.run = read_run(fields);
  results.complete = fields.maybe_boolean(kResultsFields[3].key).value_or(true);
  results.caches = fields.maybe_text(kResultsFields[0].key);
  results.elements = fields.maybe_integer(kResultsFields[1].key);
  results.notes = fields.maybe_texts(kResultsFields[2].key);
  if (results.run.command == kPredictCommand) {
    results.prediction = read_prediction(fields);
    return results;
  }
  read_tune(fields, results);
  read_samples(fields, results);
  if (const auto queues = fields.maybe_object(kMixedQueues)) results.mixed_queues = read_mixed_queues(*queues);
  results.chunks = read_chunks(fields.maybe_objects(kChunks));
  if (results.run.command == kLayersCommand) results.layers = read_layers(fields);
  results.configurations = read_configurations(fields.maybe_objects(kConfigurations));
  results.traces = read_traces(fields.maybe_objects(kTraces));
  if (const auto training = fields.maybe_object(kTraining)) results.training = read_training(*training);
  if (const auto comparison = fields.maybe_object(kComparison)) results.comparison = read_comparison(*comparison);
  return results;
}

std::string results_text(const Results& results) {
  return dump_json(results_json(results), 1) + "\n";
}

Results parse_results(std::string_view text, const std::string& file) {
  const json document = parse_json(text, file, kExpected);
  try {
    return results_from_json(document);
  } catch (const FieldError& error) {
    throw InputError(fmt::format("{}:{}: {}", file, json_line_of(text, error.path()), error.what()));
  }
}

Results read_results(const std::filesystem::path& path) {
  return parse_results(read_text_file(path, kLongestJsonLine, kExpected), path.string());
}

}  // namespace firkin
