// What the commands print with --json that compute without a run: `firkin buckets`, and `firkin import` of measurements.
//
//   json_of(BucketsByCap{.source = "xl", ...});
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/sharded_plan.h"
#include "results/results.h"

namespace firkin {

// ---- firkin buckets

struct ListedBucket {
  int64_t bytes = 0;
  std::vector<std::string> tensors;  // names
};

template <>
inline constexpr auto kFields<ListedBucket> = std::tuple(Field("bytes", &ListedBucket::bytes, Unit::kSize),
                                                         Field("tensors", &ListedBucket::tensors));

struct BucketsOfCap {
  int64_t cap_bytes = 0;
  int64_t buckets = 0, smallest_bytes = 0, largest_bytes = 0;
  std::vector<ListedBucket> assignment = {};  // empty unless asked for
};

template <>
inline constexpr auto kFields<BucketsOfCap> = std::tuple(Field(kCapKey, &BucketsOfCap::cap_bytes, Unit::kMib),
                                                         Field("buckets", &BucketsOfCap::buckets),
                                                         Field("smallest_bytes", &BucketsOfCap::smallest_bytes, Unit::kSize),
                                                         Field("largest_bytes", &BucketsOfCap::largest_bytes, Unit::kSize),
                                                         Field("assignment", &BucketsOfCap::assignment, kIfAny));

struct BucketsByCap {
  std::string source, rule;
  int64_t tensors = 0, gradient_bytes = 0;
  std::vector<BucketsOfCap> caps = {};
};

template <>
inline constexpr auto kFields<BucketsByCap> = std::tuple(Field("source", &BucketsByCap::source), Field("rule", &BucketsByCap::rule),
                                                         Field("tensors", &BucketsByCap::tensors),
                                                         Field(kGradientBytesKey, &BucketsByCap::gradient_bytes, Unit::kSize),
                                                         Field("caps", &BucketsByCap::caps));

struct ListedModel {
  ModelDescription model;
  std::string description;
};

template <>
inline constexpr auto kFields<ListedModel> = std::tuple(Field("", &ListedModel::model), Field("description", &ListedModel::description));

struct ListedModels {
  std::vector<ListedModel> models;
};

template <>
inline constexpr auto kFields<ListedModels> = std::tuple(Field("models", &ListedModels::models));

struct MemoryOfRanks {
  int64_t ranks = 0;
  RankMemory memory;
};

template <>
inline constexpr auto kFields<MemoryOfRanks> = std::tuple(Field("ranks", &MemoryOfRanks::ranks, Unit::kPlain),
                                                          Field("", &MemoryOfRanks::memory));

struct MemoryByRanks {
  std::string source, dtype;
  int64_t parameters = 0;  // elements
  RankMemory plain = {};
  std::vector<MemoryOfRanks> sharded = {};
};

template <>
inline constexpr auto kFields<MemoryByRanks> = std::tuple(Field("source", &MemoryByRanks::source), Field("dtype", &MemoryByRanks::dtype),
                                                          Field("parameters", &MemoryByRanks::parameters),
                                                          Field("plain", &MemoryByRanks::plain), Field("sharded", &MemoryByRanks::sharded));

// ---- firkin import

// What was read, without a run.
struct ImportSummary {
  std::vector<std::string> notes = {}, files = {}, formats = {};
  std::optional<std::string> model = {};
  std::optional<int64_t> tensors = {}, gradient_bytes = {};
  std::optional<double> backward_s = {};
  std::optional<int64_t> measurements = {};  // rows of all-reduces
  std::vector<int64_t> world_sizes = {};
};

template <>
inline constexpr auto kFields<ImportSummary> = std::tuple(Field("notes", &ImportSummary::notes), Field("files", &ImportSummary::files),
                                                          Field("formats", &ImportSummary::formats), Field("model", &ImportSummary::model),
                                                          Field("tensors", &ImportSummary::tensors),
                                                          Field(kGradientBytesKey, &ImportSummary::gradient_bytes, Unit::kSize),
                                                          Field(kBackwardKey, &ImportSummary::backward_s),
                                                          Field("measurements", &ImportSummary::measurements),
                                                          Field("world_sizes", &ImportSummary::world_sizes, kIfAny));

}  // namespace firkin
