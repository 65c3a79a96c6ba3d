#include "results/prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/units.h"
#include "results/numbers.h"
#include "results/ordered_prediction.h"
#include "results/profile.h"
#include "results/traces.h"
#include "results/tune.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr unsigned kOnlyShown = kFirstTable | kPage | kNotInJson;
constexpr const char* kExtrapolated = "extrapolated";
constexpr const char* kInfluence = "influence";
constexpr const char* kBestUniform = "best_uniform";
constexpr const char* kCurveQuality = "curve_leave_one_out";
constexpr const char* kAlphaBetaQuality = "alpha_beta_leave_one_out";

constexpr Field<PredictedWorkload> kWorkloadFields[] = {{AllReduceColumns::kWorldSize, &PredictedWorkload::world_size, Unit::kCount},
                                                        {kExtrapolated, &PredictedWorkload::extrapolated},
                                                        {kTensorsKey, &PredictedWorkload::tensors, Unit::kCount},
                                                        {kGradientBytesKey, &PredictedWorkload::gradient_bytes, Unit::kCount},
                                                        {kBackwardKey, &PredictedWorkload::backward_s, Unit::kDifference},
                                                        {"rule", &PredictedWorkload::rule},
                                                        {"first_cap_mib", &PredictedWorkload::first_cap_bytes, Unit::kBytesAsMib},
                                                        {"gap_measured", &PredictedWorkload::gap_measured}};
constexpr Field<LeaveOneOut> kQualityFields[] = {{kMedianErrorKey, &LeaveOneOut::median_relative_error, Unit::kShare},
                                                 {"largest_relative_error", &LeaveOneOut::largest_relative_error, Unit::kShare},
                                                 {"worst_bytes", &LeaveOneOut::worst_bytes, Unit::kCount}};

// "857 ms to 902 ms"; nothing for a time whose inputs have no known errors.
Value spread(const PredictedBucketing& row) {
  return row.low_s && row.high_s ? Value(Interval{*row.low_s, *row.high_s}) : Value();
}

constexpr Field<PredictedBucketing> kBucketingFields[] = {
    {kNameKey, &PredictedBucketing::name, Unit::kText, "baseline"},
    {kCapKey, &PredictedBucketing::cap_bytes, Unit::kBytesAsMib, "cap MiB"},
    {"same_buckets_from_mib", &PredictedBucketing::lowest_cap_bytes, Unit::kBytesAsMib, "", kHidden},
    {"same_buckets_to_mib", &PredictedBucketing::highest_cap_bytes, Unit::kBytesAsMib, "", kHidden},
    {kBucketsKey, &PredictedBucketing::buckets, Unit::kCount, kBucketsKey},
    {kBackwardKey, &PredictedBucketing::backward_s, Unit::kSeconds, "backward"},
    {kExposedKey, &PredictedBucketing::exposed_s, Unit::kDifference, "exposed"},
    {kRegretKey, &PredictedBucketing::regret, Unit::kShare, kRegretKey},
    {"", spread, Unit::kSeconds, "95 %", kOnlyShown},
    {"near_best", &PredictedBucketing::near_best, Unit::kShare, "P(best)"},
    {"expected_regret", &PredictedBucketing::expected_regret, Unit::kShare, "exp. regret"},
    {kLowKey, &PredictedBucketing::low_s, Unit::kSeconds, "", kHidden},
    {kHighKey, &PredictedBucketing::high_s, Unit::kSeconds, "", kHidden},
    {"description", &PredictedBucketing::description, Unit::kText, "what it is", kPage},
    {"partitions_tried", &PredictedBucketing::partitions_tried, Unit::kCount, "", kHidden},
    {"exhaustive", &PredictedBucketing::exhaustive, Unit::kText, "", kHidden}};

constexpr Field<PredictedBucket> kBucketFields[] = {
    {kTensorBytes, &PredictedBucket::bytes, Unit::kCount, "", kHidden},
    {kTensorsKey, &PredictedBucket::tensors, Unit::kText, "", kHidden},
    {"", [](const PredictedBucket& bucket) { return Value(bucket.bytes); }, Unit::kBytes, "size", kOnlyShown},
    {kTensorReady, &PredictedBucket::ready_s, Unit::kDifference, "ready"},
    {kStartKey, &PredictedBucket::start_s, Unit::kDifference, "sent"},
    {kEndKey, &PredictedBucket::end_s, Unit::kDifference, "reduced"}};
constexpr Field<PredictedPlan> kPlanFields[] = {{kBackwardKey, &PredictedPlan::backward_s, Unit::kSeconds},
                                                {kExposedKey, &PredictedPlan::exposed_s, Unit::kDifference},
                                                {kLowKey, &PredictedPlan::low_s, Unit::kSeconds},
                                                {kHighKey, &PredictedPlan::high_s, Unit::kSeconds},
                                                {"gain", &PredictedPlan::gain, Unit::kShare},
                                                {"exact", &PredictedPlan::exact}};
constexpr Field<PyTorchCaps> kPyTorchFields[] = {{"bucket_cap_mb_list", &PyTorchCaps::mib, Unit::kPlain},
                                                 {"pytorch_reproduces_plan", &PyTorchCaps::reproduces_plan}};

constexpr Field<EvenWorkload> kEvenFields[] = {{kOverheadKey, &EvenWorkload::overhead_s, Unit::kSeconds},
                                               {"bandwidth_bytes_s", &EvenWorkload::bandwidth_bytes_s, Unit::kPlain}};
constexpr Field<EqualBuckets> kEqualFields[] = {{kBucketsKey, &EqualBuckets::count, Unit::kPlain},
                                                {kCapKey, &EqualBuckets::bucket_bytes, Unit::kBytesAsMib},
                                                {kExposedKey, &EqualBuckets::exposed_s, Unit::kDifference}};
constexpr Field<GrowingBuckets> kGrowingFields[] = {{"bucket_mib", &GrowingBuckets::bucket_bytes, Unit::kBytesAsMib},
                                                    {kBackwardKey, &GrowingBuckets::backward_s, Unit::kSeconds}};

constexpr const char* kFactor = "factor";
constexpr Field<StragglerPrediction> kStragglerFields[] = {
    {kSamplesKey, &StragglerPrediction::samples, Unit::kCount},
    {"measured_ranks", &StragglerPrediction::measured_ranks, Unit::kCount},
    {"slowest_rank_ratio", &StragglerPrediction::slowest_rank_ratio, Unit::kRatio},
    {kRanksKey, &StragglerPrediction::ranks, Unit::kCount},
    {kFactor, &StragglerPrediction::factor, Unit::kRatio},
    {"tail_factor", &StragglerPrediction::tail_factor, Unit::kRatio},
    {kExtrapolated, &StragglerPrediction::beyond_samples},
    {"measured_backward_s", &StragglerPrediction::measured_backward_s, Unit::kDifference}};

constexpr Field<FormPrediction> kFormFields[] = {
    {"form", &FormPrediction::form, Unit::kText, "model"},
    {"left_out_error", &FormPrediction::left_out_error, Unit::kShare, "left-out error"},
    {"weight", &FormPrediction::weight, Unit::kShare, "weight"},
    {"safest_backward_s", &FormPrediction::safest_backward_s, Unit::kSeconds, "safest cap"},
    {"", [](const FormPrediction& row) { return Value(*row.best.cap_bytes); }, Unit::kBytesAsMib, "its best MiB", kOnlyShown},
    {"", [](const FormPrediction& row) { return Value(row.best.backward_s); }, Unit::kSeconds, "with that", kOnlyShown}};
constexpr const char* kForms = "forms";
constexpr Field<Extrapolation> kWorldFields[] = {{"fitted_worlds", &Extrapolation::fitted_worlds, Unit::kCount}};

constexpr const char *kPoints = "points", *kMap = "map", *kElasticities = "elasticities";
constexpr const char *kLatencyFactor = "latency_factor", *kBandwidthFactor = "bandwidth_factor";
constexpr Field<SensitivityPoint> kPointFields[] = {
    {"", [](const SensitivityPoint& point) { return Value(name_of(point.influence)); }, Unit::kText, "influence", kOnlyShown},
    {kFactor, &SensitivityPoint::factor, Unit::kPlain, "factor"},
    {kCapKey, &SensitivityPoint::cap_bytes, Unit::kBytesAsMib, "cap MiB"},
    {"within_1_percent_from_mib", &SensitivityPoint::near_low_bytes, Unit::kBytesAsMib, "within 1 % from", kPage},
    {"within_1_percent_to_mib", &SensitivityPoint::near_high_bytes, Unit::kBytesAsMib, "to MiB", kPage},
    {kBucketsKey, &SensitivityPoint::buckets, Unit::kCount, kBucketsKey},
    {kBackwardKey, &SensitivityPoint::backward_s, Unit::kSeconds, "backward"},
    {kExposedKey, &SensitivityPoint::exposed_s, Unit::kDifference, "exposed"},
    {"kept_backward_s", &SensitivityPoint::kept_backward_s, Unit::kSeconds, "", kHidden},
    {"", [](const SensitivityPoint& point) { return Value(cost_of_keeping(point)); }, Unit::kChange, "keep cap", kOnlyShown}};
constexpr Field<Elasticity> kElasticityFields[] = {{"elasticity", &Elasticity::value, Unit::kPlain},
                                                   {"common_from_mib", &Elasticity::common_low_bytes, Unit::kBytesAsMib},
                                                   {"common_to_mib", &Elasticity::common_high_bytes, Unit::kBytesAsMib},
                                                   {"words", &Elasticity::words}};

constexpr const char *kBestPlan = "best_plan", *kBaselines = "baselines", *kAnalytic = "analytic", *kStragglers = "stragglers",
                     *kExtrapolation = "extrapolation", *kSafest = "least_expected_regret", *kSensitivity = "sensitivity",
                     *kOrdered = "ordered";

constexpr std::span<const Field<PredictedBucketing>> kBucketing = kBucketingFields;

PredictedBucketing read_with_cap(const JsonFields& fields) {
  fields.positive(kCapKey);
  return from_json(kBucketing, fields);
}

json workload_json(const PredictedWorkload& workload) {
  json object = to_json<PredictedWorkload>(kWorkloadFields, workload);
  object.update(simulation_json(workload.simulation));
  if (workload.latency_factor) object[kLatencyFactor] = *workload.latency_factor;
  if (workload.curve_quality) object[kCurveQuality] = to_json<LeaveOneOut>(kQualityFields, *workload.curve_quality);
  if (workload.alpha_beta_quality) object[kAlphaBetaQuality] = to_json<LeaveOneOut>(kQualityFields, *workload.alpha_beta_quality);
  return object;
}

PredictedWorkload read_workload(const JsonFields& fields) {
  auto workload = from_json<PredictedWorkload>(kWorkloadFields, fields);
  workload.simulation = read_simulation(fields);
  workload.latency_factor = fields.maybe_positive(kLatencyFactor);
  if (const auto object = fields.maybe_object(kCurveQuality)) workload.curve_quality = from_json<LeaveOneOut>(kQualityFields, *object);
  if (const auto object = fields.maybe_object(kAlphaBetaQuality))
    workload.alpha_beta_quality = from_json<LeaveOneOut>(kQualityFields, *object);
  return workload;
}

json plan_json(const PredictedPlan& plan) {
  json object = to_json<PredictedPlan>(kPlanFields, plan);
  object.update(to_json<PyTorchCaps>(kPyTorchFields, plan.pytorch));
  object[kBucketsKey] = rows_to_json<PredictedBucket>(kBucketFields, plan.buckets);
  return object;
}

PredictedPlan read_plan(const JsonFields& fields) {
  auto plan = from_json<PredictedPlan>(kPlanFields, fields);
  plan.pytorch = from_json<PyTorchCaps>(kPyTorchFields, fields);
  for (const JsonFields& bucket : fields.objects(kBucketsKey)) plan.buckets.push_back(from_json<PredictedBucket>(kBucketFields, bucket));
  return plan;
}

json analytic_json(const AnalyticPrediction& analytic) {
  json object = to_json<EvenWorkload>(kEvenFields, analytic.workload);
  object["balanced"] = to_json<EqualBuckets>(kEqualFields, analytic.balanced);
  object["even"] = to_json<EqualBuckets>(kEqualFields, analytic.even);
  if (analytic.growing) object["growing"] = to_json<GrowingBuckets>(kGrowingFields, *analytic.growing);
  return object;
}

AnalyticPrediction read_analytic(const JsonFields& fields) {
  AnalyticPrediction analytic{from_json<EvenWorkload>(kEvenFields, fields),
                              from_json<EqualBuckets>(kEqualFields, fields.object("balanced")),
                              from_json<EqualBuckets>(kEqualFields, fields.object("even")), std::nullopt};
  if (const auto growing = fields.maybe_object("growing")) analytic.growing = from_json<GrowingBuckets>(kGrowingFields, *growing);
  return analytic;
}

json extrapolation_json(const Extrapolation& extrapolation) {
  json object = to_json<Extrapolation>(kWorldFields, extrapolation);
  for (const FormPrediction& form : extrapolation.forms) {
    object[kForms].push_back(to_json<FormPrediction>(kFormFields, form));
    object[kForms].back()[kBestUniform] = to_json(kBucketing, form.best);
  }
  return object;
}

Extrapolation read_extrapolation(const JsonFields& fields) {
  auto extrapolation = from_json<Extrapolation>(kWorldFields, fields);
  for (const JsonFields& form : fields.objects(kForms)) {
    extrapolation.forms.push_back(from_json<FormPrediction>(kFormFields, form));
    extrapolation.forms.back().best = read_with_cap(form.object(kBestUniform));
  }
  return extrapolation;
}

json point_json(const SensitivityPoint& point) {
  json object = to_json<SensitivityPoint>(kPointFields, point);
  object[kInfluence] = name_of(point.influence);
  return object;
}

json sensitivity_json(const SensitivityPrediction& sensitivity) {
  json object;
  for (const SensitivityPoint& point : sensitivity.points) object[kPoints].push_back(point_json(point));
  const std::vector<double>& factors = sensitivity.map.factors;
  for (size_t i = 0; i < sensitivity.map.cells.size(); ++i) {
    object[kMap].push_back(point_json(sensitivity.map.cells[i]));
    object[kMap].back()[kLatencyFactor] = factors[i / factors.size()];
    object[kMap].back()[kBandwidthFactor] = factors[i % factors.size()];
  }
  for (const Elasticity& elasticity : sensitivity.elasticities) {
    object[kElasticities].push_back(to_json<Elasticity>(kElasticityFields, elasticity));
    object[kElasticities].back()[kInfluence] = name_of(elasticity.influence);
  }
  return object;
}

Influence read_influence(const JsonFields& fields) {
  const std::string name = fields.text(kInfluence);
  const auto found = std::ranges::find_if(kInfluences, [&](Influence influence) { return name_of(influence) == name; });
  if (found == kInfluences.end()) fields.fail(kInfluence, fmt::format("\"{}\"", name), "\"latency\", or another input of the model");
  return *found;
}

SensitivityPoint read_point(const JsonFields& fields) {
  fields.positive(kCapKey);
  auto point = from_json<SensitivityPoint>(kPointFields, fields);
  point.influence = read_influence(fields);
  return point;
}

// Charts are drawn of it, so that it must be whole.
SensitivityPrediction read_sensitivity(const JsonFields& fields) {
  SensitivityPrediction sensitivity;
  for (const JsonFields& point : fields.objects(kPoints)) sensitivity.points.push_back(read_point(point));
  if (std::ranges::find(sensitivity.points, 1.0, &SensitivityPoint::factor) == sensitivity.points.end())
    fields.fail(kPoints, "without the factor 1", "it among the factors");
  std::vector<double>& factors = sensitivity.map.factors;
  const std::vector<JsonFields> cells = fields.objects(kMap);
  while (factors.size() * factors.size() < cells.size()) factors.push_back(cells[factors.size()].number(kBandwidthFactor));
  for (size_t i = 0; i < cells.size(); ++i) {
    sensitivity.map.cells.push_back(read_point(cells[i]));
    if (cells[i].number(kLatencyFactor) != factors[i / factors.size()] || cells[i].number(kBandwidthFactor) != factors[i % factors.size()])
      cells[i].fail(kLatencyFactor, "out of order", "every latency with every bandwidth");
  }
  if (cells.empty() || factors.size() * factors.size() != cells.size())
    fields.fail(kMap, "no square", "every latency with every bandwidth");
  for (const JsonFields& elasticity : fields.maybe_objects(kElasticities)) {
    sensitivity.elasticities.push_back(from_json<Elasticity>(kElasticityFields, elasticity));
    sensitivity.elasticities.back().influence = read_influence(elasticity);
  }
  return sensitivity;
}

Table captioned(Table table, const char* caption) {
  table.caption = caption;
  return table;
}

Table predicted_curve_table(const std::vector<PredictedBucketing>& curve, Medium medium) {
  Table table = table_of(kBucketing, curve, medium, medium == Medium::kPage ? kPage : kFirstTable);
  const auto best = std::ranges::min_element(curve, {}, &PredictedBucketing::backward_s);
  if (best != curve.end()) table.rows[static_cast<size_t>(best - curve.begin())].highlighted = true;
  return captioned(std::move(table), "Backward with its communication, by bucket cap");
}

Table plan_table(const std::vector<PredictedBucket>& buckets, Medium medium) {
  Table table = table_of<PredictedBucket>(kBucketFields, buckets, medium, kFirstTable);
  table.columns.insert(table.columns.begin(), {{"bucket"}, {kTensorsKey}});
  size_t tensors = 0;
  for (size_t k = 0; k < buckets.size(); ++k) {
    const size_t first = tensors + 1;
    tensors += buckets[k].tensors.size();
    const std::string range = first == tensors ? fmt::format("{}", first) : fmt::format("{} - {}", first, tensors);
    table.rows[k].cells.insert(table.rows[k].cells.begin(), {fmt::format("{}", k + 1), range});
  }
  if (medium == Medium::kTerminal) keep_first_and_last(table);
  return captioned(std::move(table),
                   "The best plan: buckets in the order in which they are sent; tensors by their place in gradient-ready order");
}

Table influences_table(const std::vector<SensitivityPoint>& points, Medium medium) {
  Table table = table_of<SensitivityPoint>(kPointFields, points, medium, medium == Medium::kPage ? kPage : kFirstTable);
  for (size_t i = 0; i < points.size(); ++i) table.rows[i].highlighted = medium == Medium::kPage && points[i].factor == 1;
  return captioned(std::move(table),
                   "The best cap when one input is multiplied (keep cap: what staying with the cap that is best at factor 1 costs)");
}

}  // namespace

void write_prediction(const Prediction& prediction, json& document) {
  document[kModelKey] = workload_json(prediction.workload);
  document[kAlphaBetaKey] = alpha_beta_json(prediction.alpha_beta);
  document[kCurveKey] = rows_to_json(kBucketing, prediction.curve);
  document[kBestUniform] = to_json(kBucketing, prediction.best_uniform);
  if (prediction.safest) document[kSafest] = to_json(kBucketing, *prediction.safest);
  document[kBestPlan] = plan_json(prediction.best_plan);
  document[kBaselines] = rows_to_json(kBucketing, prediction.baselines);
  if (prediction.analytic) document[kAnalytic] = analytic_json(*prediction.analytic);
  if (prediction.stragglers) document[kStragglers] = to_json<StragglerPrediction>(kStragglerFields, *prediction.stragglers);
  if (prediction.extrapolation) document[kExtrapolation] = extrapolation_json(*prediction.extrapolation);
  if (prediction.sensitivity) document[kSensitivity] = sensitivity_json(*prediction.sensitivity);
  if (prediction.ordered) document[kOrdered] = ordered_json(*prediction.ordered);
  if (!prediction.hooks.empty()) document[kHooksKey] = hooks_json(prediction.hooks);
}

Prediction read_prediction(const JsonFields& document) {
  Prediction prediction;
  prediction.workload = read_workload(document.object(kModelKey));
  prediction.alpha_beta = read_alpha_beta(document.object(kAlphaBetaKey));
  for (const JsonFields& row : document.objects(kCurveKey)) prediction.curve.push_back(read_with_cap(row));
  prediction.best_uniform = read_with_cap(document.object(kBestUniform));
  if (const auto fields = document.maybe_object(kSafest)) prediction.safest = read_with_cap(*fields);
  prediction.best_plan = read_plan(document.object(kBestPlan));
  for (const JsonFields& row : document.maybe_objects(kBaselines)) prediction.baselines.push_back(from_json(kBucketing, row));
  if (const auto fields = document.maybe_object(kAnalytic)) prediction.analytic = read_analytic(*fields);
  if (const auto fields = document.maybe_object(kStragglers))
    prediction.stragglers = from_json<StragglerPrediction>(kStragglerFields, *fields);
  if (const auto fields = document.maybe_object(kExtrapolation)) prediction.extrapolation = read_extrapolation(*fields);
  if (const auto fields = document.maybe_object(kSensitivity)) prediction.sensitivity = read_sensitivity(*fields);
  if (const auto fields = document.maybe_object(kOrdered)) prediction.ordered = read_ordered(*fields);
  prediction.hooks = read_hooks(document.maybe_objects(kHooksKey));
  return prediction;
}

double cost_of_keeping(const SensitivityPoint& point) {
  return std::max(0.0, point.kept_backward_s / point.backward_s - 1);
}

std::vector<Table> prediction_tables(const Prediction& prediction, Medium medium) {
  const unsigned shown = medium == Medium::kPage ? kPage : kFirstTable;
  std::vector<Table> tables;
  if (!prediction.curve.empty()) tables.push_back(predicted_curve_table(prediction.curve, medium));
  tables.push_back(plan_table(prediction.best_plan.buckets, medium));
  if (prediction.ordered) tables.push_back(ordered_table(*prediction.ordered, medium));
  if (!prediction.hooks.empty()) tables.push_back(hooks_table(prediction.hooks, medium));
  if (prediction.extrapolation) {
    tables.push_back(
        captioned(table_of<FormPrediction>(kFormFields, prediction.extrapolation->forms, medium, shown),
                  "How all-reduces may grow with the number of ranks: models, weighted by how they predicted what was left out"));
  }
  if (!prediction.baselines.empty())
    tables.push_back(captioned(table_of(kBucketing, prediction.baselines, medium, shown), "Baselines, against the best plan"));
  if (prediction.sensitivity) tables.push_back(influences_table(prediction.sensitivity->points, medium));
  return tables;
}

}  // namespace firkin
