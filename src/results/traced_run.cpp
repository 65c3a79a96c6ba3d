// What `firkin import` says about the run in a trace: its fields in results.json, and its tables.
#include "import/traced_run.h"

#include <fmt/format.h>

#include "results/field.h"
#include "results/results.h"

namespace firkin {

using nlohmann::json;

template <>
constexpr auto kFields<TracedBucket> = std::tuple(Field("bytes", &TracedBucket::bytes, Unit::kSize, "size"),
                                                  Field("tensors", &TracedBucket::tensors),
                                                  Field("ready_s", &TracedBucket::ready_s, Unit::kDifference),
                                                  Field("start_s", &TracedBucket::start_s, Unit::kDifference, "started"),
                                                  Field("end_s", &TracedBucket::end_s, Unit::kDifference, "reduced"),
                                                  Field("waiting_s", &TracedBucket::waiting_s, Unit::kDifference, "waited"));

template <>
constexpr auto kFields<OtherCollectives> = std::tuple(Field("name", &OtherCollectives::name, "collective"),
                                                      Field("group", &OtherCollectives::group), Field("calls", &OtherCollectives::calls));

template <>
constexpr auto kFields<TracedPeriod> = std::tuple(Field("communicates", &TracedPeriod::communicates),
                                                  Field("start_s", &TracedPeriod::start_s, Unit::kDifference),
                                                  Field("end_s", &TracedPeriod::end_s, Unit::kDifference));

namespace {

std::optional<double> exposed_share(const TracedRank& rank) {
  return rank.step_s > 0 ? std::optional(rank.exposed_s / rank.step_s) : std::nullopt;
}

}  // namespace

template <>
constexpr auto kFields<TracedRank> = std::tuple(Field("rank", &TracedRank::rank), Field("file", &TracedRank::file, kHidden),
                                                Field("step_s", &TracedRank::step_s, Unit::kSeconds),
                                                Field("backward_s", &TracedRank::backward_s, Unit::kDifference),
                                                Field("communication_s", &TracedRank::communication_s, Unit::kDifference),
                                                Field("exposed_s", &TracedRank::exposed_s, Unit::kDifference),
                                                Field("exposed_share", exposed_share, Unit::kShare, "of step"),
                                                Field("waiting_s", &TracedRank::waiting_s, Unit::kDifference, "waited"),
                                                Field("timeline", &TracedRank::timeline));

template <>
constexpr auto kFields<TracedRun> =
    std::tuple(Field("backend", &TracedRun::backend), Field("world_size", &TracedRun::world_size), Field("steps", &TracedRun::steps),
               Field("tensors", &TracedRun::tensors), Field(kGradientBytesKey, &TracedRun::gradient_bytes, Unit::kSize),
               Field("ranks", &TracedRun::ranks), Field("buckets", &TracedRun::buckets), Field(kCapKey, &TracedRun::cap_bytes, Unit::kMib),
               Field("same_buckets_from_mib", &TracedRun::lowest_cap_bytes, Unit::kMib),
               Field("same_buckets_to_mib", &TracedRun::highest_cap_bytes, Unit::kMib), Field("is_default_cap", &TracedRun::is_default_cap),
               Field("least_communication_s", &TracedRun::least_communication_s, Unit::kDifference),
               Field("others", &TracedRun::others, kIfAny), Field("findings", &TracedRun::findings, kIfAny));

void write_object(const TracedRun& run, json& object) {
  write_object<>(run, object);
}

void read_object(const JsonFields& fields, TracedRun& run) {
  read_object<>(fields, run);
  if (run.ranks.empty()) fields.fail("ranks", "empty", "at least one rank");
  if (run.buckets.empty()) fields.fail("buckets", "empty", "at least one all-reduce");
  for (const TracedRank& rank : run.ranks) {
    for (const TracedPeriod& period : rank.timeline) {
      if (period.start_s < 0 || period.start_s > period.end_s)
        fields.fail("ranks", "a period that ends before it starts", "0 or more, in order");
    }
  }
}

std::vector<Table> traced_tables(const TracedRun& run, unsigned shown) {
  std::vector<Table> tables;
  tables.push_back(table_of(run.ranks, shown, "Medians over the traced steps"));
  tables.push_back(table_of(run.buckets, shown,
                            fmt::format("A step's all-reduces on rank {}: medians, from the start of backward", run.ranks.front().rank)));
  if (!run.others.empty()) tables.push_back(table_of(run.others, shown, "Collectives that carry no gradients, in the whole trace"));
  return tables;
}

}  // namespace firkin
