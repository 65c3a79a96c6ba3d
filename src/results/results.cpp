#include "results/results.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"
#include "results/field.h"

namespace firkin {

using nlohmann::json;

namespace {

constexpr unsigned kAside = kSecondTable | kPage;

std::optional<double> median_if_any(const std::vector<double>& seconds) {
  return seconds.empty() ? std::nullopt : std::optional(median(seconds));
}

// A field that is the median of another.
template <class Row, std::vector<double> Row::*series>
std::optional<double> median_of(const Row& row) {
  return median_if_any(row.*series);
}

}  // namespace

template <>
constexpr auto kFields<CurveRow> =
    std::tuple(Field(kCapKey, &CurveRow::cap_bytes, Unit::kMib, "cap MiB"), Field("buckets", &CurveRow::buckets),
               Field("predicted_s", &CurveRow::predicted_s, Unit::kSeconds), Field("measured_s", &CurveRow::measured_s, Unit::kSeconds),
               Field("measured_ci_s", &CurveRow::measured_ci_s, Unit::kSeconds, kPage), Field("error", &CurveRow::error, Unit::kChange),
               Field("ratio_to_default", &CurveRow::ratio_to_default, Unit::kRatio, "x default", kTables),
               Field("ratio_to_default_ci", &CurveRow::ratio_to_default_ci, Unit::kRatio, kTables),
               Field("ratio_to_chosen", &CurveRow::ratio_to_chosen, Unit::kRatio, "x chosen", kPage),
               Field("ratio_to_chosen_ci", &CurveRow::ratio_to_chosen_ci, Unit::kRatio, kPage),
               Field("predicted_range_s", &CurveRow::predicted_range_s, Unit::kSeconds, "interval of the prediction", kPage));

template <>
constexpr auto kFields<StrategyRow> = std::tuple(
    Field("strategy", &StrategyRow::strategy, kTables | kSecondTable),
    Field(kCapKey, &StrategyRow::cap_bytes, Unit::kMib, "MiB", kTables | kSecondTable), Field("buckets", &StrategyRow::buckets),
    Field("measured_s", &StrategyRow::measured_s, Unit::kSeconds, "step"),
    Field("measured_ci_s", &StrategyRow::measured_ci_s, Unit::kSeconds), Field("predicted_s", &StrategyRow::predicted_s, Unit::kSeconds),
    Field("rank_spread", &StrategyRow::rank_spread, Unit::kShare, "spread", kAside),
    Field("comm_s", &StrategyRow::comm_s, Unit::kDifference, "after bw"),
    Field("comm_share", &StrategyRow::comm_share, Unit::kShare, "share", kSecondTable),
    Field("exposed_s", &StrategyRow::exposed_s, Unit::kDifference),
    Field("ratio_to_default", &StrategyRow::ratio_to_default, Unit::kRatio, "x default", kTables),
    Field("ratio_to_default_ci", &StrategyRow::ratio_to_default_ci, Unit::kRatio, kTables),
    Field("overlap_percent", &StrategyRow::overlap_percent, "ovlp %", kAside),
    Field("communication_s", &StrategyRow::communication_s, kHidden),
    Field("per_tensor_us", &StrategyRow::per_tensor_us, "per tensor", kHidden),
    Field("peak_memory_bytes", &StrategyRow::peak_memory_bytes, Unit::kBytes, "memory", kAside),
    Field("memory_between_steps_bytes", &StrategyRow::memory_between_steps_bytes, Unit::kBytes, kHidden),
    Field("tokens_per_s", &StrategyRow::tokens_per_s, Unit::kCount, "tokens/s", kAside),
    Field("ratio_to_torch", &StrategyRow::ratio_to_torch, Unit::kRatio, "x torch", kAside),
    Field("ratio_to_torch_ci", &StrategyRow::ratio_to_torch_ci, Unit::kRatio, kSecondTable | kPage));

template <>
constexpr auto kFields<StepConfiguration> = std::tuple(Field("model", &StepConfiguration::model),
                                                       Field("status", &StepConfiguration::status, kDefault),
                                                       Field("reason", &StepConfiguration::reason),
                                                       Field("strategies", &StepConfiguration::strategies, kIfAny),
                                                       Field("samples", &StepConfiguration::samples));

template <>
constexpr auto kFields<PairedRatio> = std::tuple(Field("ratio", &PairedRatio::ratio, Unit::kRatio),
                                                 Field("ratio_ci", &PairedRatio::interval, Unit::kRatio));

template <>
constexpr std::array<std::string_view, 8> kNames<Outcome> = {
    "gain",           "gain not shown", "default not measured", "same buckets as the default", "communication hidden", "nothing to gain",
    "default faster", "not told apart"};

template <>
constexpr std::array<std::string_view, 4> kNames<NextStep> = {"more time", "more blocks", "less noise", "send less"};

namespace {
std::string certainty_of_answer(const Decision& decision) {
  constexpr std::array<const char*, 4> kNames = {"shown", "likely, not shown", "not told apart", "nothing to gain"};
  return kNames[static_cast<size_t>(certainty_of(decision))];
}
}  // namespace

template <>
constexpr auto kFields<Decision> = std::tuple(
    Field("outcome", &Decision::outcome), Field("certainty", certainty_of_answer), Field(kCapKey, &Decision::cap_bytes, Unit::kMib),
    Field("lowest_cap_mib", &Decision::lowest_cap_bytes, Unit::kMib), Field("highest_cap_mib", &Decision::highest_cap_bytes, Unit::kMib),
    Field("predicted_s", &Decision::predicted_s, Unit::kSeconds), Field("measured_s", &Decision::measured_s, Unit::kSeconds),
    Field("predicted_to_default", &Decision::predicted_to_default, Unit::kRatio), Field("over_default", &Decision::over_default),
    Field("expected_regret", &Decision::expected_regret), Field("tied_mib", &Decision::tied_bytes, Unit::kMib),
    Field("level", &Decision::level, Unit::kRatio), Field("options", &Decision::options),
    Field("options_over_none", &Decision::options_over_none), Field("all_over_default", &Decision::all_over_default),
    Field("recommended", &Decision::recommended), Field("next_step", &Decision::next_step), Field("blocks", &Decision::blocks, kIfAny),
    Field("blocks_needed", &Decision::blocks_needed));

template <>
constexpr auto kFields<CalibrationRun> = std::tuple(Field("name", &CalibrationRun::name), Field("buckets", &CalibrationRun::buckets),
                                                    Field("measured_s", &CalibrationRun::measured_s, Unit::kSeconds));

template <>
constexpr auto kFields<Calibration> = std::tuple(Field("", &Calibration::options),
                                                 Field("latency_factor", &Calibration::latency_factor, Unit::kRatio),
                                                 Field("median_relative_error", &Calibration::median_relative_error),
                                                 Field("fitted", &Calibration::fitted), Field("residual", &Calibration::residual),
                                                 Field("at_bound", &Calibration::at_bound, kIfAny));

template <>
constexpr auto kFields<CalibrationSection> = std::tuple(Field("", &CalibrationSection::fit), Field("runs", &CalibrationSection::runs));

template <>
constexpr auto kFields<TensorProfile> = std::tuple(Field(kBackwardKey, &TensorProfile::backward_s, Unit::kSeconds),
                                                   Field("forward_s", &TensorProfile::forward_s, kIfAny));

static void write_object(const TensorProfile& profile, json& object) {
  write_object<>(profile, object);
  json& tensors = object["tensors"] = json::array();
  for (size_t i = 0; i < profile.names.size(); ++i) {
    tensors.push_back({{kTensorName, profile.names[i]}, {kTensorBytes, profile.bytes[i]}, {kTensorReady, profile.ready_s[i]}});
    if (!profile.needed_s.empty()) tensors[i][kTensorNeeded] = profile.needed_s[i];
    if (!profile.update_s.empty()) tensors[i][kTensorUpdate] = profile.update_s[i];
  }
}

static void read_object(const JsonFields& fields, TensorProfile& profile) {
  read_object<>(fields, profile);
  for (const JsonFields& tensor : fields.objects("tensors")) {
    profile.names.push_back(tensor.get<std::string>(kTensorName));
    profile.bytes.push_back(tensor.get<int64_t>(kTensorBytes));
    profile.ready_s.push_back(tensor.get<double>(kTensorReady));
    if (tensor.has(kTensorNeeded)) profile.needed_s.push_back(tensor.get<double>(kTensorNeeded));
    if (tensor.has(kTensorUpdate)) profile.update_s.push_back(tensor.get<double>(kTensorUpdate));
  }
  check_profile(profile);
}

template <>
constexpr auto kFields<MeasuredProfile> = std::tuple(Field("", &MeasuredProfile::tensors),
                                                     Field("bare_backward_s", &MeasuredProfile::bare_backward_s, Unit::kSeconds),
                                                     Field("hook_perturbation", &MeasuredProfile::hook_perturbation));

namespace {

// algbw, bytes per second of one rank's data, and busbw, what the links carry of it, as nccl-tests defines them.
// Derived figures are only stated for rows that `firkin bench allreduce` measured.
std::optional<double> algorithm_bandwidth(const AllReduceRow& row) {
  return row.calls_per_sample ? std::optional(static_cast<double>(row.bytes) / row.median_s) : std::nullopt;
}
std::optional<double> bus_bandwidth(const AllReduceRow& row) {
  const auto ranks = static_cast<double>(row.world_size);
  return row.calls_per_sample ? std::optional(*algorithm_bandwidth(row) * 2 * (ranks - 1) / ranks) : std::nullopt;
}
std::optional<int64_t> count_of_elements(const AllReduceRow& row) {
  return row.calls_per_sample ? std::optional(row.bytes / kFloatBytes) : std::nullopt;
}
std::optional<double> variation(const AllReduceRow& row) {
  return row.calls_per_sample ? std::optional(row.stdev_s.value_or(0) / row.mean_s.value_or(1)) : std::nullopt;
}

}  // namespace

template <>
constexpr auto kFields<AllReduceRow> = std::tuple(
    Field("bytes", &AllReduceRow::bytes, Unit::kBytes, "size"), Field("world_size", &AllReduceRow::world_size, "ranks", kPage),
    Field("count", count_of_elements), Field("median_s", &AllReduceRow::median_s, Unit::kSeconds),
    Field("gap_s", &AllReduceRow::gap_s, Unit::kSeconds), Field("p99_s", &AllReduceRow::p99_s, Unit::kSeconds),
    Field("cv", variation, Unit::kShare), Field("mean_s", &AllReduceRow::mean_s, Unit::kSeconds, kHidden),
    Field("stdev_s", &AllReduceRow::stdev_s, kHidden), Field("stderr_s", &AllReduceRow::stderr_s, kHidden),
    Field("gap_stderr_s", &AllReduceRow::gap_stderr_s, kHidden), Field("min_s", &AllReduceRow::min_s, Unit::kSeconds, "least", kPage),
    Field("max_s", &AllReduceRow::max_s, Unit::kSeconds, "greatest", kPage),
    Field("algbw_bytes_per_s", algorithm_bandwidth, Unit::kBandwidth, "algbw", kTables),
    Field("busbw_bytes_per_s", bus_bandwidth, Unit::kBandwidth, "busbw", kTables), Field("samples", &AllReduceRow::samples, kPage),
    Field("calls_per_sample", &AllReduceRow::calls_per_sample, kHidden), Field("wrong", &AllReduceRow::wrong, "#wrong"));

template <>
constexpr auto kFields<ChunksRow> =
    std::tuple(Field("chunk_bytes", &ChunksRow::chunk_bytes, Unit::kBytes, "chunk"),
               Field(
                   "chunk_elements", +[](const ChunksRow& row) { return row.chunk_bytes / kFloatBytes; }, "elements"),
               Field("world_size", &ChunksRow::world_size, "ranks", kHidden), Field("calls", &ChunksRow::calls),
               Field("total_s", &ChunksRow::total_s, Unit::kSeconds, "all"), Field("total_ci_s", &ChunksRow::total_ci_s, Unit::kSeconds),
               Field("gap_s", &ChunksRow::gap_s, Unit::kSeconds, "per call"), Field("mean_s", &ChunksRow::mean_s, Unit::kSeconds, kHidden),
               Field("stdev_s", &ChunksRow::stdev_s, Unit::kDifference, "deviation", kHidden),
               Field("min_s", &ChunksRow::min_s, Unit::kSeconds, "least", kHidden),
               Field("max_s", &ChunksRow::max_s, Unit::kSeconds, "greatest", kHidden), Field("samples", &ChunksRow::samples),
               Field("wrong", &ChunksRow::wrong, kHidden));

template <>
constexpr auto kFields<CollectiveRow> = std::tuple(
    Field("collective", &CollectiveRow::collective), Field("bytes", &CollectiveRow::bytes, Unit::kBytes, "size"),
    Field("world_size", &CollectiveRow::world_size, "ranks", kHidden), Field("seconds", &CollectiveRow::seconds, Unit::kSeconds, "median"),
    Field("gap_s", &CollectiveRow::gap_s, Unit::kSeconds, "queued", kPage), Field("ci_s", &CollectiveRow::ci_s, Unit::kSeconds, kTables),
    Field("ratio_to_allreduce", &CollectiveRow::ratio_to_allreduce, Unit::kRatio, "ratio", kTables),
    Field("ratio_to_allreduce_ci", &CollectiveRow::ratio_to_allreduce_ci, Unit::kRatio, kPage),
    Field("samples", &CollectiveRow::samples, kTables), Field("calls_per_sample", &CollectiveRow::calls_per_sample, kHidden),
    Field("wrong", &CollectiveRow::wrong, "#wrong", kTables));

namespace {
double rate_of_pair(const PairRow& row) {
  return static_cast<double>(row.bytes) / row.seconds;
}
double gigabits_of_pair(const PairRow& row) {
  return 8e-9 * rate_of_pair(row);
}
double gigabits_of_link(const LinkRow& row) {
  return 8e-9 * row.bytes_per_s;
}
std::optional<std::string> link_in_words(const LinkRow& row) {
  return row.is_slow ? std::optional<std::string>("slow") : std::nullopt;
}
}  // namespace

template <>
constexpr auto kFields<PairRow> = std::tuple(Field("rank", &PairRow::rank), Field("host", &PairRow::host),
                                             Field("other", &PairRow::other, "and rank"), Field("other_host", &PairRow::other_host, "host"),
                                             Field("bytes", &PairRow::bytes, Unit::kBytes, "each way"),
                                             Field("seconds", &PairRow::seconds, Unit::kSeconds, "least"),
                                             Field("bytes_per_s", rate_of_pair, Unit::kBandwidth, kHidden),
                                             Field("", gigabits_of_pair, "Gbit/s", kTables), Field("samples", &PairRow::samples));

template <>
constexpr auto kFields<LinkRow> = std::tuple(Field("rank", &LinkRow::rank), Field("host", &LinkRow::host),
                                             Field("bytes_per_s", &LinkRow::bytes_per_s, Unit::kBandwidth, kHidden),
                                             Field("", gigabits_of_link, "Gbit/s", kTables),
                                             Field("share", &LinkRow::share, Unit::kShare, "of the fastest"),
                                             Field("is_slow", &LinkRow::is_slow, kHidden), Field("", link_in_words, "link", kTables));

template <>
constexpr auto kFields<LayerRow> = std::tuple(Field("name", &LayerRow::name, "layer"), Field("parameters", &LayerRow::parameters),
                                              Field("forward_s", median_of<LayerRow, &LayerRow::forward_s>, Unit::kDifference),
                                              Field("backward_s", median_of<LayerRow, &LayerRow::backward_s>, Unit::kDifference));

template <>
constexpr auto kFields<LayersSection> = std::tuple(Field("layers", &LayersSection::layers),
                                                   Field("samples.forward_s", &LayersSection::forward_s),
                                                   Field("samples.backward_s", &LayersSection::backward_s),
                                                   Field("samples.optimizer_s", &LayersSection::optimizer_s),
                                                   Field("samples.watched_step_s", &LayersSection::watched_step_s),
                                                   Field("samples.bare_step_s", &LayersSection::bare_step_s),
                                                   Field("forward_s", median_of<LayersSection, &LayersSection::forward_s>),
                                                   Field("backward_s", median_of<LayersSection, &LayersSection::backward_s>),
                                                   Field("optimizer_s", median_of<LayersSection, &LayersSection::optimizer_s>));

// Rows hold samples; the document keeps these apart from their medians.
static void write_object(const LayersSection& section, json& object) {
  write_object<>(section, object);
  json& samples = object["samples"]["layers"] = json::array();
  for (const LayerRow& row : section.layers) {
    samples.push_back({{"name", row.name}, {"forward_s", row.forward_s}, {"backward_s", row.backward_s}});
  }
}

static void read_object(const JsonFields& fields, LayersSection& section) {
  read_object<>(fields, section);
  const std::vector<JsonFields> samples = fields.objects("samples.layers");
  if (samples.size() != section.layers.size()) {
    fields.fail("samples.layers", fmt::format("of {} layers", samples.size()), fmt::format("those of {}", section.layers.size()));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    section.layers[i].forward_s = samples[i].get<std::vector<double>>("forward_s");
    section.layers[i].backward_s = samples[i].get<std::vector<double>>("backward_s");
  }
}

namespace {

template <std::vector<double> TraceFigures::*series>
std::optional<double> first_rank(const TraceRow& trace) {
  return trace.ranks.empty() ? std::nullopt : median_if_any(trace.ranks[0].*series);
}

std::optional<double> exposed_of_first(const TraceRow& trace) {
  const auto all_s = first_rank<&TraceFigures::communication_s>(trace), hidden_s = first_rank<&TraceFigures::overlapped_s>(trace);
  return all_s && hidden_s ? std::optional(*all_s - *hidden_s) : std::nullopt;
}

}  // namespace

std::optional<double> overlapped_share(const TraceRow& trace) {
  const auto all_s = first_rank<&TraceFigures::communication_s>(trace), hidden_s = first_rank<&TraceFigures::overlapped_s>(trace);
  return all_s && hidden_s && *all_s > 0 ? std::optional(*hidden_s / *all_s) : std::nullopt;
}

template <>
constexpr auto kFields<TraceFigures> = std::tuple(Field("step_s", median_of<TraceFigures, &TraceFigures::step_s>),
                                                  Field("compute_s", median_of<TraceFigures, &TraceFigures::compute_s>),
                                                  Field("communication_s", median_of<TraceFigures, &TraceFigures::communication_s>),
                                                  Field("overlapped_s", median_of<TraceFigures, &TraceFigures::overlapped_s>),
                                                  Field("samples.step_s", &TraceFigures::step_s),
                                                  Field("samples.compute_s", &TraceFigures::compute_s),
                                                  Field("samples.communication_s", &TraceFigures::communication_s),
                                                  Field("samples.overlapped_s", &TraceFigures::overlapped_s));

template <>
constexpr auto kFields<BusyPeriod> = std::tuple(Field("activity", &BusyPeriod::activity), Field("start_s", &BusyPeriod::start_s),
                                                Field("end_s", &BusyPeriod::end_s, Unit::kSeconds));

static void read_object(const JsonFields& fields, BusyPeriod& period) {
  read_object<>(fields, period);
  if (period.start_s < 0 || period.start_s > period.end_s)
    fields.fail("start_s", fmt::format("{}", period.start_s), "0 or more, at most the end");
}

template <>
constexpr auto kFields<TraceRow> = std::tuple(
    Field("strategy", &TraceRow::strategy, kHidden), Field("name", &TraceRow::name, "strategy"),
    Field(kCapKey, &TraceRow::cap_bytes, Unit::kMib, kHidden), Field("file", &TraceRow::file, kHidden),
    Field("", first_rank<&TraceFigures::step_s>, Unit::kDifference, "step", kTables),
    Field("", first_rank<&TraceFigures::compute_s>, Unit::kDifference, "compute", kTables),
    Field("", first_rank<&TraceFigures::communication_s>, Unit::kDifference, "communication", kTables),
    Field("", overlapped_share, Unit::kShare, "overlapped", kTables), Field("", exposed_of_first, Unit::kDifference, "exposed", kTables),
    Field("ranks", &TraceRow::ranks, kIfAny), Field("timeline", &TraceRow::timeline));

template <>
constexpr auto kFields<Results> = std::tuple(
    Field("elements", &Results::elements), Field("notes", &Results::notes, kIfAny), Field("complete", &Results::complete, kDefault),
    Field("profile", &Results::profile), Field("allreduce", &Results::allreduce, kIfAny), Field("alpha_beta", &Results::alpha_beta),
    Field("calibration", &Results::calibration), Field("curve", &Results::curve, kIfAny),
    Field("dense_curve", &Results::dense_curve, kIfAny), Field("strategies", &Results::strategies, kIfAny),
    Field("decision", &Results::decision), Field("best_predicted", &Results::best_predicted),
    Field("best_measured", &Results::best_measured), Field("indifference_set", &Results::indifference_set, Unit::kMib, kIfAny),
    Field("regret", &Results::regret), Field("over_default", &Results::over_default),
    Field("ordered_over_best_cap", &Results::ordered_over_best_cap), Field("sharded", &Results::sharded),
    Field("sharded_over_best_cap", &Results::sharded_over_best_cap), Field("chunks", &Results::chunks, kIfAny),
    Field("collectives", &Results::collectives, kIfAny), Field("pairs", &Results::pairs, kIfAny), Field("links", &Results::links, kIfAny),
    Field("configurations", &Results::configurations, kIfAny), Field("traces", &Results::traces, kIfAny), Field("traced", &Results::traced),
    Field("samples", &Results::samples));

namespace {

constexpr const char* kExpected = "the results.json of a subcommand";

// Throws InputError unless the row has the times that an answer needs.
void require_times(const JsonFields& row) {
  row.get<double>("predicted_s", Unit::kSeconds);
  row.get<double>("measured_s", Unit::kSeconds);
}

// A complete run of `firkin tune` has an answer.
void check_answer_of_tune(const JsonFields& document, Results& results) {
  const std::vector<JsonFields> curve = document.objects("curve");
  if (curve.empty()) document.fail("curve", "empty", "at least one cap");
  for (const JsonFields& row : curve) require_times(row);
  if (!document.has("strategies")) document.fail("strategies", "missing", "an array of objects");
  for (const char* section : {"decision", "best_predicted", "best_measured"}) document.object(section);
  document.get<double>("regret");
  for (const char* best : {"best_predicted", "best_measured"}) require_times(document.object(best));
  if (results.indifference_set.empty()) document.fail("indifference_set", "missing or empty", "an array of caps in MiB");
  std::ranges::sort(results.indifference_set);
}

}  // namespace

json results_json(const Results& results) {
  json document = json::object();
  write_object(results.run, document);
  write_object(results, document);
  if (results.prediction) write_object(*results.prediction, document);
  if (results.layers) write_object(*results.layers, document);
  return document;
}

Results results_from_json(const json& document) {
  const JsonFields fields(document, "");
  Results results;
  read_object(fields, results.run);
  const std::string& command = results.run.command;
  if (command == kPredictCommand) {
    results.complete = fields.maybe<bool>("complete").value_or(true);
    results.notes = fields.get<std::vector<std::string>>("notes");
    read_object(fields, results.prediction.emplace());
    return results;
  }
  read_object(fields, results);
  if (command == "tune" && results.complete) {
    check_answer_of_tune(fields, results);
  } else {
    results.decision.reset();
  }
  std::ranges::stable_sort(results.allreduce, {}, [](const AllReduceRow& row) { return std::pair(row.world_size, row.bytes); });
  std::ranges::stable_sort(results.curve, {}, &CurveRow::cap_bytes);
  std::ranges::stable_sort(results.dense_curve, {}, &CurveRow::cap_bytes);
  if (command == "bench-layers") read_object(fields, results.layers.emplace());
  return results;
}

std::string results_text(const Results& results) {
  return dump_json(results_json(results), 1) + "\n";
}

void write_files(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files) {
  write_file_atomically(folder / kResultsFile, results_text(results));
  for (const OutputFile& file : files) write_file_atomically(folder / file.name, file.content);
}

Results parse_results(std::string_view text, const std::string& file) {
  const json document = parse_json(text, file, kExpected);
  try {
    return results_from_json(document);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", file, error.what()));
  }
}

Results read_results(const std::filesystem::path& path) {
  return parse_results(read_text_file(path, kLongestJsonLine, kExpected), path.string());
}

Table curve_table(const std::vector<CurveRow>& curve, unsigned shown) {
  return table_of(curve, shown, "Step time by bucket cap (error: predicted / measured − 1)");
}

Table strategy_table(const std::vector<StrategyRow>& rows, unsigned shown) {
  return table_of(rows, shown, "Step time by strategy");
}

Table allreduce_table(const AllReduceTable& table, unsigned shown) {
  return table_of(table, shown, "Time of an all-reduce by size (median a(x), gap g(x); bandwidths in GB/s)");
}

std::vector<Table> section_tables(const Results& results, unsigned shown) {
  std::vector<Table> tables;
  if (results.traced) tables = traced_tables(*results.traced, shown);
  const auto add = [&](const auto& rows, const char* caption) {
    if (!rows.empty()) tables.push_back(table_of(rows, shown, caption));
  };
  const auto has_figures = [](const TraceRow& trace) { return !trace.ranks.empty(); };  // a watch has only a timeline
  if (std::ranges::any_of(results.traces, has_figures)) add(results.traces, "Rank 0, medians over the recorded steps");
  if (results.layers) {
    std::vector<LayerRow> rows = results.layers->layers;
    LayerRow all{.name = "all", .forward_s = results.layers->forward_s, .backward_s = results.layers->backward_s};
    for (const LayerRow& row : rows) all.parameters += row.parameters;
    rows.push_back(std::move(all));
    add(rows, "Median time of every layer");
  }
  add(results.chunks, "The same data by the size of its chunks");
  add(results.collectives, "Time of each collective by the size of the bucket");
  add(results.links, "The rate of each link");
  if ((shown & kPage) != 0) add(results.pairs, "Two ranks at a time");
  return tables;
}

}  // namespace firkin
