// A results.json as structs: what a subcommand measured, and its tables. Sections it did not measure are empty.
//
//   const Results results = read_results("firkin-out/tune/results.json");
//   results.decision->cap_bytes;
//   write_file_atomically("copy.json", results_text(results));  // the same again
//
// To add a column: a member, and a line in its table of fields in results.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/plan/calibration.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/measurements.h"
#include "firkin/plan/prediction.h"
#include "import/traced_run.h"
#include "measuring/tuning.h"
#include "results/run.h"

namespace firkin {

// ---- Step times: what `firkin tune` and `firkin bench step` measure.

// One bucket cap. Times are seconds a step.
struct CurveRow {
  int64_t cap_bytes = 0;
  std::optional<int64_t> buckets = {};
  std::optional<double> predicted_s = {};
  std::optional<double> measured_s = {};
  std::optional<Interval> measured_ci_s = {};                         // 95 %
  std::optional<double> error = {};                                   // predicted / measured - 1
  std::optional<double> ratio_to_default = {}, ratio_to_chosen = {};  // paired, where both ran in the same blocks
  std::optional<Interval> ratio_to_default_ci = {}, ratio_to_chosen_ci = {};
  std::optional<Interval> predicted_range_s = {};  // the prediction's interval (PredictedCap)
};

// One strategy, or one strategy under one cap. Seconds a step, and bytes a rank.
struct StrategyRow {
  std::string strategy;
  std::optional<int64_t> cap_bytes = {};
  std::optional<int64_t> buckets = {};
  double measured_s = 0;
  std::optional<Interval> measured_ci_s = {};
  std::optional<double> predicted_s = {};
  // measured_s minus the step without communication; noise can make it negative.
  std::optional<double> exposed_s = {};
  std::optional<double> comm_s = {};           // from the end of backward to the last gradient
  std::optional<double> comm_share = {};       // comm_s / measured_s
  std::optional<double> rank_spread = {};      // slowest rank less fastest, as a fraction
  std::optional<double> communication_s = {};  // for its collectives alone
  std::optional<double> overlap_percent = {};  // the part of communication_s that computation hides
  std::optional<double> per_tensor_us = {};    // exposed_s per tensor, microseconds
  std::optional<double> tokens_per_s = {};     // over all ranks
  std::optional<int64_t> peak_memory_bytes = {}, memory_between_steps_bytes = {};
  std::optional<double> ratio_to_default = {};  // over PyTorch's default, paired; only from a tuning
  std::optional<Interval> ratio_to_default_ci = {};
  std::optional<double> ratio_to_torch = {};  // paired
  std::optional<Interval> ratio_to_torch_ci = {};
};

// One model and shape of `firkin bench step`.
struct StepConfiguration {
  ModelDescription model;
  std::string status = "measured";  // or "out of memory"
  std::optional<std::string> reason = {};
  std::vector<StrategyRow> strategies = {};
  nlohmann::json samples = {};  // samples_of() its settings
};

// Raw times of settings that ran in the same blocks, as the samples of a result: [setting][block], and of raw steps
// [setting][step][rank].
nlohmann::json samples_of(std::span<const SettingSteps> settings);

std::string setting_name(const StrategyRow& row);  // "bucketed 2.38 MiB"

// ---- The answer of `firkin tune`.

// A run that the model was calibrated on.
struct CalibrationRun {
  std::string name;
  int64_t buckets = 0;
  double measured_s = 0;
};

struct CalibrationSection {
  std::vector<CalibrationRun> runs = {};
  Calibration fit;
};

// ---- A fixed amount of data in chunks.

// One chunk size of `firkin bench chunks`: the same data in `calls` all-reduces that are under way together. Seconds.
struct ChunksRow {
  int64_t chunk_bytes = 0;
  std::optional<int64_t> world_size = {};
  int64_t calls = 0;
  double total_s = 0;                       // median, of all calls together
  std::optional<Interval> total_ci_s = {};  // 95 %
  std::optional<double> gap_s = {};         // per call
  std::optional<double> mean_s = {}, stdev_s = {}, min_s = {}, max_s = {};
  std::optional<int64_t> samples = {}, wrong = {};
};

// ---- Links, pair by pair.

// Two ranks of `firkin bench pairs`, which send `bytes` to each other at once.
struct PairRow {
  int64_t rank = 0, other = 0;
  std::string host = {}, other_host = {};
  int64_t bytes = 0;
  double seconds = 0;  // the least of the samples: other load can only lengthen one
  int64_t samples = 0;
  std::vector<double> samples_s = {};  // in the order measured, on the slower of the two; not in the table
};

// The link of one rank: as fast as in the fastest pair that the rank is in, since the other link of a pair may limit it.
struct LinkRow {
  int64_t rank = 0;
  std::string host = {};
  double bytes_per_s = 0;  // in each direction at once
  double share = 0;        // of the fastest link's rate
  bool is_slow = false;    // below kSlowLink of it, which only three ranks or more can tell
};
inline constexpr double kSlowLink = 0.8;

// The links of all ranks in `pairs`, by rank. Empty for no pairs.
std::vector<LinkRow> links_of(const std::vector<PairRow>& pairs);

// ---- Where a step's time goes, layer by layer.

// One layer, or the whole model. Samples are seconds on the slowest rank, one per watched step.
struct LayerRow {
  std::string name;
  int64_t parameters = 0;               // elements
  std::vector<double> forward_s = {};   // samples; empty when not observed
  std::vector<double> backward_s = {};  // samples; empty for a layer without parameters of its own
};

struct LayersSection {
  std::vector<LayerRow> layers = {};
  std::vector<double> forward_s = {}, backward_s = {}, optimizer_s = {};  // for the whole model; samples
  std::vector<double> watched_step_s = {}, bare_step_s = {};              // with clocks and without; one per pair of steps
};

// ---- What ran when in a few steps.

// A period in which rank 0 was busy with or waited for something, in seconds since the step began.
struct BusyPeriod {
  std::string activity;  // "compute", "communication", "forward waits" for parameters (strategy ordered), "optimiser"
  double start_s = 0;
  double end_s = 0;
};

// One rank's steps in seconds: samples, and their medians.
struct TraceFigures {
  std::vector<double> step_s = {}, compute_s = {}, communication_s = {}, overlapped_s = {};
};

// One setting of `firkin trace`.
struct TraceRow {
  std::string strategy;
  std::string name;  // "bucketed 4 MiB"
  std::optional<int64_t> cap_bytes = {};
  std::string file;  // the Chrome trace
  std::vector<TraceFigures> ranks = {};
  std::vector<BusyPeriod> timeline = {};  // the last step's
};

// The share of rank 0's communication that overlaps computation; none if it did not communicate.
std::optional<double> overlapped_share(const TraceRow& trace);

// ---- All of it.

struct Results {
  RunHead run;
  bool complete = true;  // false: the run was interrupted, or is still running
  // tune
  std::optional<MeasuredProfile> profile = {};  // also of bench layers
  AllReduceTable allreduce;                     // also of bench allreduce
  std::optional<AlphaBeta> alpha_beta = {};
  std::optional<CalibrationSection> calibration = {};
  std::vector<CurveRow> curve = {};        // by ascending cap
  std::vector<CurveRow> dense_curve = {};  // by ascending cap, predictions only
  std::vector<StrategyRow> strategies = {};
  std::optional<Decision> decision = {};  // this and the following: only from a complete run
  std::optional<CurveRow> best_predicted = {}, best_measured = {};
  std::vector<int64_t> indifference_set = {};             // caps in bytes that the measurement cannot tell from the best
  std::optional<double> regret = {};                      // step at best_predicted over step at best_measured, minus 1
  std::optional<PairedRatio> over_default = {};           // step with the chosen cap over PyTorch's default, as in the decision
  std::optional<PairedRatio> ordered_over_best_cap = {};  // the best cap is the chosen one
  std::optional<PredictedSharded> sharded = {};           // its periods are whole steps
  std::optional<PairedRatio> sharded_over_best_cap = {};  // if it was measured
  std::vector<std::string> notes = {};                    // what else a reader has to know
  nlohmann::json samples = {};                            // every single time, in seconds, for readers of the file (docs/results.md)
  // bench allreduce, chunks, collectives, pairs, layers, step; trace
  std::optional<int64_t> elements = {};  // float32, of all chunks together
  std::vector<ChunksRow> chunks = {};
  std::vector<CollectiveRow> collectives = {};
  std::vector<PairRow> pairs = {};
  std::vector<LinkRow> links = {};  // of the pairs
  std::optional<LayersSection> layers = {};
  std::vector<StepConfiguration> configurations = {};
  std::vector<TraceRow> traces = {};
  // predict
  std::optional<Prediction> prediction = {};
  // import, of traces
  std::optional<TracedRun> traced = {};
};

nlohmann::json results_json(const Results& results);

// Throws InputError naming the field ("results: curve[2].measured_s: missing; expected a positive number"). A complete
// run of `tune` must have the sections of an answer.
Results results_from_json(const nlohmann::json& document);

// The text of a results.json. Strings that are not UTF-8 are repaired with U+FFFD.
std::string results_text(const Results& results);

// Throws InputError when the text is no JSON, repeats a key, or a section is malformed. `file`: the name in errors.
Results parse_results(std::string_view text, const std::string& file);
Results read_results(const std::filesystem::path& path);

// A further file of the folder, beside results.json.
struct OutputFile {
  std::string name;
  std::string content;
};

// Writes results.json and the other files, each atomically. Throws RuntimeError if one cannot be written.
void write_files(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files);

// ---- Made from results.

// Fills everything except the run's head and the notes (report/words.h), as far as the tuning has come; an incomplete one
// has no decision.
void add_sections(const Tuning& tuning, Results& results);

// Whether a tuning's measurement cannot tell the cap apart from the best one.
bool is_tied(const Results& results, int64_t cap_bytes);

// "chosen", "measured best", "chosen, measured best", "not told apart", or nothing.
std::string remark_on(const Results& results, int64_t cap_bytes);

// A bucket size as a setting of a training tool, in the tool's own unit.
struct PasteSetting {
  std::string tool;     // "DeepSpeed"
  std::string setting;  // the text to paste
  std::string note;     // what to know before: units, versions, what it does not reach
};

// cap_bytes: of a bucket, positive. element_bytes: of a reduced gradient (4 for float32). plan_caps_mib:
// bucket_cap_mb_list of a plan to offer as well; may be empty. docs/frameworks.md names sources and versions.
std::vector<PasteSetting> paste_settings(int64_t cap_bytes, int64_t element_bytes, const std::vector<double>& plan_caps_mib);

// ---- Tables. shown: kFirstTable or kSecondTable for the terminal, kPage for a page.

Table curve_table(const std::vector<CurveRow>& curve, unsigned shown);
Table strategy_table(const std::vector<StrategyRow>& rows, unsigned shown);
Table profile_table(const TensorProfile& profile);  // one row per tensor, with the bytes that are ready so far
Table allreduce_table(const AllReduceTable& table, unsigned shown);

// The sections that look the same in every output, if present: a traced run, traces (rank 0's medians), layers (then the
// whole model), chunks, collectives, links (on a page also their pairs).
std::vector<Table> section_tables(const Results& results, unsigned shown);

// Tables of a prediction, if present: T(b) with the one highlighted row for the cap to use, the best plan's buckets (in
// the terminal the first and the last of many), the ordered plan's, baselines, sensitivity.
std::vector<Table> prediction_tables(const Prediction& prediction, unsigned shown);

// Tables of a traced run: its ranks, its all-reduces, other collectives.
std::vector<Table> traced_tables(const TracedRun& run, unsigned shown);

// For field.h: structs that several sections hold.
void write_object(const TracedRun& run, nlohmann::json& object);
void read_object(const JsonFields& fields, TracedRun& run);
void write_object(const Prediction& prediction, nlohmann::json& document);
void read_object(const JsonFields& document, Prediction& prediction);
template <>
inline constexpr auto kFields<SimulationOptions> = std::tuple(Field("overhead_s", &SimulationOptions::overhead_s),
                                                              Field("compute_slowdown", &SimulationOptions::compute_slowdown,
                                                                    Unit::kRatio));

template <>
inline constexpr auto kFields<AlphaBeta> = std::tuple(Field("alpha_s", &AlphaBeta::alpha_s),
                                                      Field("beta_s_per_byte", &AlphaBeta::beta_s_per_byte),
                                                      Field("median_relative_error", &AlphaBeta::median_relative_error));

template <>
inline constexpr auto kFields<RankMemory> = std::tuple(Field("parameters_bytes", &RankMemory::parameters, Unit::kSize, "parameters"),
                                                       Field("gradients_bytes", &RankMemory::gradients, Unit::kSize, "gradients"),
                                                       Field("received_bytes", &RankMemory::received, Unit::kSize, "received"),
                                                       Field("optimizer_bytes", &RankMemory::optimizer, Unit::kSize, "optimiser"),
                                                       Field("masters_bytes", &RankMemory::masters, Unit::kSize, "masters"),
                                                       Field(
                                                           "total_bytes", +[](const RankMemory& memory) { return memory.total(); },
                                                           Unit::kSize, "total"));

template <>
inline constexpr auto kFields<PredictedPeriod> = std::tuple(Field("bucketed_period_s", &PredictedPeriod::bucketed_period_s),
                                                            Field("period_s", &PredictedPeriod::period_s, Unit::kSeconds),
                                                            Field(
                                                                "gain", +[](const PredictedPeriod& period) { return period.gain(); }),
                                                            Field("bound_s", &PredictedPeriod::bound_s),
                                                            Field("waited_s", &PredictedPeriod::waited_s),
                                                            Field("computation_s", &PredictedPeriod::computation_s),
                                                            Field("communication_s", &PredictedPeriod::communication_s),
                                                            Field("agreement_s", &PredictedPeriod::agreement_s));

template <>
inline constexpr auto kFields<PredictedSharded> =
    std::tuple_cat(kFields<PredictedPeriod>,
                   std::tuple(Field(kCapKey, &PredictedSharded::cap_bytes, Unit::kBytesAsMib),
                              Field("same_buckets_from_mib", &PredictedSharded::lowest_cap_bytes, Unit::kBytesAsMib),
                              Field("same_buckets_to_mib", &PredictedSharded::highest_cap_bytes, Unit::kBytesAsMib),
                              Field("buckets", &PredictedSharded::buckets),
                              Field("gain_over_ordered", &PredictedSharded::gain_over_ordered), Field("halves", &PredictedSharded::halves),
                              Field("plain_memory", &PredictedSharded::plain), Field("sharded_memory", &PredictedSharded::sharded)));

}  // namespace firkin
