// What `firkin predict` says: its fields in results.json, and its tables.
#include <fmt/format.h>

#include "results/field.h"
#include "results/results.h"

namespace firkin {

using nlohmann::json;

template <>
constexpr auto kFields<PredictedWorkload> = std::tuple(
    Field("world_size", &PredictedWorkload::world_size), Field("extrapolated_from", &PredictedWorkload::extrapolated_from),
    Field("tensors", &PredictedWorkload::tensors), Field(kGradientBytesKey, &PredictedWorkload::gradient_bytes),
    Field(kBackwardKey, &PredictedWorkload::backward_s), Field("rule", &PredictedWorkload::rule),
    Field("first_cap_mib", &PredictedWorkload::first_cap_bytes, Unit::kBytesAsMib), Field("gap_measured", &PredictedWorkload::gap_measured),
    Field("compute_assumed", &PredictedWorkload::compute_assumed, kIfAny), Field("", &PredictedWorkload::simulation),
    Field("latency_factor", &PredictedWorkload::latency_factor, Unit::kRatio));

namespace {

// The interval of a predicted time; none if it was not asked for.
std::optional<Interval> spread(const PredictedCap& cap) {
  return cap.low_s > 0 && cap.high_s > 0 ? std::optional(Interval{cap.low_s, cap.high_s}) : std::nullopt;
}

std::string places_text(auto first, auto last) {
  return first >= last ? fmt::format("{}", first) : fmt::format("{} – {}", first, last);
}

}  // namespace

template <>
constexpr auto kFields<PredictedCap> = std::tuple(
    Field(kCapKey, &PredictedCap::cap_bytes, Unit::kBytesAsMib, "cap MiB", kTables | kIfAny),
    Field("same_buckets_from_mib", &PredictedCap::lowest_cap_bytes, Unit::kBytesAsMib, kIfAny),
    Field("same_buckets_to_mib", &PredictedCap::highest_cap_bytes, Unit::kBytesAsMib, kIfAny), Field("buckets", &PredictedCap::buckets),
    Field(kBackwardKey, &PredictedCap::time_s, Unit::kSeconds), Field("exposed_s", &PredictedCap::exposed_s, Unit::kDifference),
    Field("regret", &PredictedCap::regret, Unit::kShare), Field("", spread, Unit::kSeconds, "interval", kPage),
    Field("near_best", &PredictedCap::near_best, Unit::kShare, "within 5 % of the best", kPage),
    Field("expected_regret", &PredictedCap::expected_regret, Unit::kShare, "expected cost", kPage),
    Field("low_s", &PredictedCap::low_s, Unit::kSeconds, kIfAny), Field("high_s", &PredictedCap::high_s, Unit::kSeconds, kIfAny),
    Field("exhaustive", &PredictedCap::exhaustive, kHidden));

template <>
constexpr auto kFields<PredictedBaseline> = std::tuple(Field("name", &PredictedBaseline::name, "baseline", kTables | kDefault),
                                                       Field("", &PredictedBaseline::plan),
                                                       Field("description", &PredictedBaseline::description, "what it is",
                                                             kPage | kDefault));

template <>
constexpr auto kFields<PredictedBucket> = std::tuple(Field("bytes", &PredictedBucket::bytes, Unit::kSize, "size"),
                                                     Field("tensors", &PredictedBucket::tensors, kHidden),
                                                     Field("ready_s", &PredictedBucket::ready_s, Unit::kDifference),
                                                     Field("start_s", &PredictedBucket::start_s, Unit::kDifference, "sent"),
                                                     Field("end_s", &PredictedBucket::end_s, Unit::kDifference, "reduced"));

template <>
constexpr auto kFields<PyTorchCaps> = std::tuple(Field("bucket_cap_mb_list", &PyTorchCaps::bucket_cap_mb_list),
                                                 Field("pytorch_reproduces_plan", &PyTorchCaps::reproduces_plan));

template <>
constexpr auto kFields<PredictedPlan> = std::tuple(Field(kBackwardKey, &PredictedPlan::backward_s, Unit::kSeconds),
                                                   Field("exposed_s", &PredictedPlan::exposed_s),
                                                   Field("low_s", &PredictedPlan::low_s, Unit::kSeconds),
                                                   Field("high_s", &PredictedPlan::high_s, Unit::kSeconds),
                                                   Field("gain", &PredictedPlan::gain), Field("exact", &PredictedPlan::exact),
                                                   Field("", &PredictedPlan::pytorch), Field("buckets", &PredictedPlan::buckets));

namespace {

// What it costs to keep the cap that is best at factor 1, as a fraction.
double cost_of_keeping(const SensitivityPoint& point) {
  return std::max(0.0, point.kept_backward_s / point.best.time_s - 1);
}

}  // namespace

template <>
constexpr std::array<std::string_view, kInfluences.size()> kNames<Influence> = {"total bytes", "latency", "bandwidth", "backward time",
                                                                                "contention"};

template <>
constexpr auto kFields<SensitivityPoint> = std::tuple(
    Field("influence", &SensitivityPoint::influence), Field("factor", &SensitivityPoint::factor), Field("", &SensitivityPoint::best),
    Field("within_1_percent_from_mib", &SensitivityPoint::near_low_bytes, Unit::kBytesAsMib, "within 1 % from", kPage),
    Field("within_1_percent_to_mib", &SensitivityPoint::near_high_bytes, Unit::kBytesAsMib, "to MiB", kPage),
    Field("kept_backward_s", &SensitivityPoint::kept_backward_s, Unit::kSeconds, kHidden),
    Field("", cost_of_keeping, Unit::kChange, "keep cap", kTables));

namespace {

// "3 – 7", counted from 1.
std::string tensors_text(const PredictedOrderedBucket& bucket) {
  return places_text(bucket.first_tensor + 1, bucket.first_tensor + std::ssize(bucket.tensors));
}

}  // namespace

template <>
constexpr auto kFields<PredictedOrderedBucket> =
    std::tuple_cat(std::tuple(Field(
                                  "", +[](const PredictedOrderedBucket& bucket) { return bucket.bucket + 1; }, "bucket", kTables),
                              Field("", tensors_text, "tensors", kTables), Field("bucket", &PredictedOrderedBucket::bucket, kHidden),
                              Field("first_tensor", &PredictedOrderedBucket::first_tensor, kHidden)),
                   kFields<PredictedBucket>, std::tuple(Field("needed_s", &PredictedOrderedBucket::needed_s, Unit::kDifference)));

template <>
constexpr auto kFields<PredictedOrdered> = std::tuple_cat(kFields<PredictedPeriod>,
                                                          std::tuple(Field("low_s", &PredictedOrdered::low_s, Unit::kSeconds),
                                                                     Field("high_s", &PredictedOrdered::high_s, Unit::kSeconds),
                                                                     Field("buckets", &PredictedOrdered::buckets)));

template <>
constexpr auto kFields<PredictedGain> = std::tuple(Field("expected", &PredictedGain::expected), Field("low", &PredictedGain::low),
                                                   Field("high", &PredictedGain::high));

template <>
constexpr auto kFields<Prediction> = std::tuple(Field("model", &Prediction::workload), Field("alpha_beta", &Prediction::alpha_beta),
                                                Field("curve", &Prediction::curve), Field("best_uniform", &Prediction::best_uniform),
                                                Field("best_plan", &Prediction::best_plan), Field("baselines", &Prediction::baselines),
                                                Field("over_default", &Prediction::over_default),
                                                Field("sensitivity.points", &Prediction::sensitivity, kIfAny),
                                                Field("ordered", &Prediction::ordered), Field("sharded", &Prediction::sharded));

void write_object(const Prediction& prediction, json& document) {
  write_object<>(prediction, document);
}

void read_object(const JsonFields& document, Prediction& prediction) {
  read_object<>(document, prediction);
  const auto require_cap = [](const JsonFields& cap) {
    if (cap.maybe<int64_t>(kCapKey, Unit::kBytesAsMib).value_or(0) <= 0)
      cap.fail(kCapKey, cap.has(kCapKey) ? "0" : "missing", "a positive number");
  };
  for (const JsonFields& cap : document.objects("curve")) require_cap(cap);
  const JsonFields best = document.object("best_uniform");
  require_cap(best);
  for (const char* key : {"low_s", "high_s"}) best.get<double>(key, Unit::kSeconds);
  for (const char* key : {"near_best", "expected_regret"}) best.get<double>(key);
}

namespace {

// Keeps the first six and the last four of many rows, with a row of "..." between.
void keep_first_and_last(Table& table) {
  constexpr size_t kMost = 12, kFirst = 6, kLast = 4;
  if (table.rows.size() <= kMost) return;
  table.rows.erase(table.rows.begin() + kFirst + 1, table.rows.end() - kLast);
  table.rows[kFirst].cells.assign(table.columns.size(), "");
  table.rows[kFirst].cells[0] = "...";
}

// The curve's caps, and the cap to use among them: the only row that is highlighted. A row with other buckets of nearly
// the same cap is another row.
Table predicted_curve_table(const Prediction& prediction, unsigned shown) {
  const PredictedCap& best = prediction.best_uniform;
  std::vector<PredictedCap> rows = prediction.curve;
  auto chosen = std::ranges::find_if(rows, [&](const PredictedCap& row) {
    return row.time_s == best.time_s && row.buckets == best.buckets && display_cap(row.cap_bytes) == display_cap(best.cap_bytes);
  });
  if (chosen == rows.end()) chosen = rows.insert(std::ranges::upper_bound(rows, best.cap_bytes, {}, &PredictedCap::cap_bytes), best);
  std::string caption = "Backward with its communication, by bucket cap";
  if (shown != kFirstTable) caption += " (expected cost: over the best cap, on average over what model and measurements may have wrong)";
  Table table = table_of(rows, shown, caption);
  const auto place = static_cast<size_t>(chosen - rows.begin());
  table.rows[place].highlighted = true;
  const std::string name = table.rows[place].cells[0];
  if (std::ranges::count(table.rows, name, [](const Table::Row& row) { return row.cells[0]; }) > 1) {
    table.rows[place].cells[0] = fmt::format("{:.6g}", mib(best.cap_bytes));
  }
  return table;
}

Table plan_table(const PredictedPlan& plan, unsigned shown) {
  const std::vector<PredictedBucket>& buckets = plan.buckets;
  Table table = table_of(buckets, kFirstTable,
                         fmt::format("The best plan{}: buckets in the order in which they are sent; tensors by their place in "
                                     "gradient-ready order",
                                     plan.exact ? "" : " that was found"));
  table.columns.insert(table.columns.begin(), {{"bucket"}, {"tensors"}});
  size_t tensors = 0;
  for (size_t k = 0; k < buckets.size(); ++k) {
    const size_t first = tensors + 1;
    tensors += buckets[k].tensors.size();
    table.rows[k].cells.insert(table.rows[k].cells.begin(), {fmt::format("{}", k + 1), places_text(first, tensors)});
  }
  if (shown != kPage) keep_first_and_last(table);
  return table;
}

}  // namespace

std::vector<Table> prediction_tables(const Prediction& prediction, unsigned shown) {
  std::vector<Table> tables;
  if (!prediction.curve.empty()) tables.push_back(predicted_curve_table(prediction, shown));
  tables.push_back(plan_table(prediction.best_plan, shown));
  if (prediction.ordered) {
    tables.push_back(table_of(prediction.ordered->buckets, kFirstTable,
                              "The ordered plan: buckets in the order in which they are launched, by their place in gradient-ready order; "
                              "seconds from the start of backward, and needed from the start of the next forward"));
    if (shown != kPage) keep_first_and_last(tables.back());
  }
  if (!prediction.baselines.empty()) tables.push_back(table_of(prediction.baselines, shown, "Baselines (regret: over the best plan)"));
  const std::vector<SensitivityPoint>& points = prediction.sensitivity;
  if (points.empty()) return tables;
  Table& table = tables.emplace_back(table_of(
      points, shown, "The best cap when one input is multiplied (keep cap: what staying with the cap that is best at factor 1 costs)"));
  for (size_t i = 0; i < points.size(); ++i) table.rows[i].highlighted = shown == kPage && points[i].factor == 1;
  return tables;
}

}  // namespace firkin
