#include "results/ordered_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "firkin/base/error.h"
#include "results/profile.h"
#include "results/run.h"
#include "results/steps.h"
#include "results/traces.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr unsigned kOrderedShown = kFirstTable | kPage | kNotInJson;

// "3 - 7" counted from 1, or "12, part 2 of 4".
Value tensors_text(const PredictedOrderedBucket& bucket) {
  const int64_t first = bucket.first_tensor + 1;
  if (bucket.parts > 1) return fmt::format("{}, part {} of {}", first, bucket.part + 1, bucket.parts);
  const auto last = bucket.first_tensor + static_cast<int64_t>(bucket.tensors.size());
  return first >= last ? fmt::format("{}", first) : fmt::format("{} - {}", first, last);
}

constexpr Field<PredictedOrderedBucket> kOrderedBucketFields[] = {
    {"", [](const PredictedOrderedBucket& bucket) { return Value(bucket.bucket + 1); }, Unit::kCount, "bucket", kOrderedShown},
    {"", tensors_text, Unit::kText, kTensorsKey, kOrderedShown},
    {"bucket", &PredictedOrderedBucket::bucket, Unit::kCount, "", kHidden},
    {"first_tensor", &PredictedOrderedBucket::first_tensor, Unit::kCount, "", kHidden},
    {"part", &PredictedOrderedBucket::part, Unit::kCount, "", kHidden},
    {"parts", &PredictedOrderedBucket::parts, Unit::kCount, "", kHidden},
    {kTensorBytes, &PredictedOrderedBucket::bytes, Unit::kCount, "", kHidden},
    {kTensorsKey, &PredictedOrderedBucket::tensors, Unit::kText, "", kHidden},
    {"", [](const PredictedOrderedBucket& bucket) { return Value(bucket.bytes); }, Unit::kBytes, "size", kOrderedShown},
    {kTensorReady, &PredictedOrderedBucket::ready_s, Unit::kDifference, "ready"},
    {kStartKey, &PredictedOrderedBucket::start_s, Unit::kDifference, "sent"},
    {kEndKey, &PredictedOrderedBucket::end_s, Unit::kDifference, "reduced"},
    {kTensorNeeded, &PredictedOrderedBucket::needed_s, Unit::kDifference, "needed"}};

constexpr const char* kBucketedPeriod = "bucketed_period_s";
constexpr Field<PredictedOrdered> kOrderedFields[] = {{kBucketedPeriod, &PredictedOrdered::bucketed_period_s, Unit::kDifference},
                                                      {"period_s", &PredictedOrdered::period_s, Unit::kSeconds},
                                                      {"gain", &PredictedOrdered::gain, Unit::kChange},
                                                      {"bound_s", &PredictedOrdered::bound_s, Unit::kDifference},
                                                      {"waited_s", &PredictedOrdered::waited_s, Unit::kDifference},
                                                      {"computation_s", &PredictedOrdered::computation_s, Unit::kDifference},
                                                      {kCommunicationSecondsKey, &PredictedOrdered::communication_s, Unit::kDifference},
                                                      {"agreement_s", &PredictedOrdered::agreement_s, Unit::kDifference},
                                                      {kLowKey, &PredictedOrdered::low_s, Unit::kSeconds},
                                                      {kHighKey, &PredictedOrdered::high_s, Unit::kSeconds}};

constexpr Field<PredictedHook> kHookFields[] = {{kHookKey, &PredictedHook::name, Unit::kText, "hook"},
                                                {kCapKey, &PredictedHook::cap_bytes, Unit::kBytesAsMib, "cap MiB"},
                                                {kBucketsKey, &PredictedHook::buckets, Unit::kCount, kBucketsKey},
                                                {kBackwardKey, &PredictedHook::backward_s, Unit::kSeconds, "backward"},
                                                {kExposedKey, &PredictedHook::exposed_s, Unit::kDifference, "exposed"},
                                                {kBucketedPeriod, &PredictedHook::bucketed_period_s, Unit::kDifference, "step, bucketed"},
                                                {"ordered_period_s", &PredictedHook::ordered_period_s, Unit::kDifference, "step, ordered"}};

// The plan that the buckets are. Throws InputError when they are none.
BucketPlan plan_of(const std::vector<PredictedOrderedBucket>& buckets) {
  BucketPlan plan;
  int64_t tensors = 0;
  plan.buckets.resize(buckets.size());
  for (const PredictedOrderedBucket& bucket : buckets) {
    plan.launch_order.push_back(bucket.bucket);
    if (bucket.part == 0) tensors += static_cast<int64_t>(bucket.tensors.size());
    if (bucket.bucket < 0 || bucket.bucket >= static_cast<int64_t>(buckets.size())) continue;  // check_plan finds it
    plan.buckets[static_cast<size_t>(bucket.bucket)] = {bucket.first_tensor, static_cast<int64_t>(bucket.tensors.size()), bucket.part,
                                                        bucket.parts};
  }
  check_plan(plan, tensors);
  if (std::ranges::is_sorted(plan.launch_order)) plan.launch_order.clear();
  return plan;
}

}  // namespace

json ordered_json(const PredictedOrdered& ordered) {
  json object = to_json<PredictedOrdered>(kOrderedFields, ordered);
  object[kBucketsKey] = rows_to_json<PredictedOrderedBucket>(kOrderedBucketFields, ordered.buckets);
  return object;
}

PredictedOrdered read_ordered(const JsonFields& fields) {
  auto ordered = from_json<PredictedOrdered>(kOrderedFields, fields);
  for (const JsonFields& bucket : fields.objects(kBucketsKey)) {
    ordered.buckets.push_back(from_json<PredictedOrderedBucket>(kOrderedBucketFields, bucket));
  }
  try {
    ordered.plan = plan_of(ordered.buckets);
  } catch (const InputError& error) {
    fields.fail(kBucketsKey, fmt::format("no plan ({})", error.what()), "every tensor once");
  }
  return ordered;
}

json hooks_json(const std::vector<PredictedHook>& hooks) {
  return rows_to_json<PredictedHook>(kHookFields, hooks);
}

std::vector<PredictedHook> read_hooks(const std::vector<JsonFields>& rows) {
  std::vector<PredictedHook> hooks;
  for (const JsonFields& row : rows) hooks.push_back(from_json<PredictedHook>(kHookFields, row));
  return hooks;
}

Table ordered_table(const PredictedOrdered& ordered, Medium medium) {
  Table table = table_of<PredictedOrderedBucket>(kOrderedBucketFields, ordered.buckets, medium, kFirstTable);
  if (medium == Medium::kTerminal) keep_first_and_last(table);
  table.caption =
      "The ordered plan: buckets in the order in which they are launched, by their place in gradient-ready order; seconds from the start "
      "of backward, and needed from the start of the next forward";
  return table;
}

Table hooks_table(const std::vector<PredictedHook>& hooks, Medium medium) {
  Table table = table_of<PredictedHook>(kHookFields, hooks, medium, kFirstTable);
  table.caption = "Gradients as they are on the wire (none) or in a smaller type";
  return table;
}

}  // namespace firkin
