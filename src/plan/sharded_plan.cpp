#include "firkin/plan/sharded_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr const char* kCollective = "collective";
constexpr const char* kBytes = "bytes";
constexpr const char* kSeconds = "seconds";
constexpr const char* kWorldSize = "world_size";
constexpr std::array kCollectives = {"all_reduce", "reduce_scatter", "all_gather"};

const CsvColumns& collectives_columns() {
  static const CsvColumns kColumns = {.required = {kCollective, kBytes, kSeconds}, .optional = {kWorldSize}, .others_allowed = true};
  return kColumns;
}

ShardedCosts costs_from_csv(const CsvTable& table, int64_t ranks) {
  std::map<std::string, std::vector<CostPoint>> points;
  for (size_t row = 0; row < table.rows(); ++row) {
    const std::string& name = table.text(row, kCollective);
    if (std::ranges::find(kCollectives, name) == kCollectives.end()) {
      table.fail(row, fmt::format("{} is {}; expected all_reduce, reduce_scatter or all_gather", kCollective, name));
    }
    const CostPoint point = {table.integer(row, kBytes), table.number(row, kSeconds)};
    if (const int64_t of = table.has(kWorldSize) ? table.integer(row, kWorldSize) : ranks; of != ranks) {
      table.fail(row, fmt::format("{} is {}; expected {}, the number of ranks predicted for", kWorldSize, of, ranks));
    }
    if (point.bytes < 1) table.fail(row, fmt::format("{} is {}; expected at least 1", kBytes, point.bytes));
    if (const char* expected = expected_of_measured(point.seconds)) {
      table.fail(row, fmt::format("{} is {}; expected {}", kSeconds, point.seconds, expected));
    }
    points[name].push_back(point);
  }
  const auto costs_of = [&](const char* name) {
    if (!points.contains(name)) table.fail_at_end(fmt::format("no {}; expected both reduce_scatter and all_gather", name));
    const CostCurve curve(points[name]);
    return CommCosts{curve, curve};
  };
  return {costs_of("reduce_scatter"), costs_of("all_gather")};
}

int64_t part_of(int64_t elements, int64_t ranks) {
  return (elements + ranks - 1) / ranks;
}

// Of the plans within a thousandth of the least time, one with the fewest buckets.
const UniformCap& best_of(const std::vector<UniformCap>& plans, const std::vector<double>& seconds) {
  constexpr double kAThousandth = 1e-3;
  const double limit_s = std::ranges::min(seconds) * (1 + kAThousandth);
  const auto rank = [&](const UniformCap& each) {
    const double time_s = seconds[static_cast<size_t>(&each - plans.data())];
    return std::tuple(time_s > limit_s, each.plan.buckets.size(), time_s);
  };
  return *std::ranges::min_element(plans, {}, rank);
}

// Of a wide interval the upper half: a cap far below what it makes would be read as a wish for smaller buckets.
int64_t cap_of(const CapInterval& caps) {
  const bool limited = caps.highest_cap_bytes != std::numeric_limits<int64_t>::max();
  return roundest_cap(
      {limited ? std::max(caps.lowest_cap_bytes, caps.highest_cap_bytes / 2 + 1) : caps.lowest_cap_bytes, caps.highest_cap_bytes});
}

PipelineOptions pipeline_options(const ShardedSearch& options) {
  return {.simulation = options.search.simulation, .agreement_s = options.agreement_s};
}

}  // namespace

ShardedCosts parse_collectives_csv(std::string_view text, const std::string& file, int64_t ranks) {
  return costs_from_csv(parse_csv(text, file, collectives_columns()), ranks);
}

ShardedCosts read_collectives_csv(const std::filesystem::path& path, int64_t ranks) {
  return costs_from_csv(read_csv(path, collectives_columns()), ranks);
}

ShardedCosts with_gaps_like(const ShardedCosts& measured, const CommCosts& all_reduce) {
  const auto with_gaps = [&](const CostCurve& isolated) {
    std::vector<CostPoint> gaps = isolated.points();
    for (CostPoint& point : gaps) {
      const auto bytes = static_cast<double>(point.bytes);
      point.seconds *= std::min(1.0, all_reduce.gap(bytes) / all_reduce.isolated(bytes));
    }
    return CommCosts{isolated, CostCurve(std::move(gaps))};
  };
  return {with_gaps(measured.reduce_scatter.isolated), with_gaps(measured.all_gather.isolated)};
}

int64_t optimizer_states(std::string_view optimizer) {
  static const std::map<std::string_view, int64_t> kStates = {{"adam", 2},    {"adamw", 2},   {"sgd-momentum", 1},
                                                              {"rmsprop", 1}, {"adagrad", 1}, {"sgd", 0}};
  const auto found = kStates.find(optimizer);
  if (found != kStates.end()) return found->second;
  throw InputError(fmt::format("optimizer {}: expected adamw, adam, sgd-momentum, rmsprop, adagrad or sgd", optimizer));
}

RankMemory plain_memory(const TrainedMemory& trained) {
  const int64_t bytes = trained.elements * trained.element_bytes;
  return {.parameters = bytes,
          .gradients = bytes,
          .optimizer = trained.states * (trained.masters ? kFloatBytes * trained.elements : bytes),
          .masters = trained.masters ? kFloatBytes * trained.elements : 0};
}

RankMemory sharded_memory(const TrainedMemory& trained, int64_t ranks) {
  if (ranks < 1) throw InputError(fmt::format("memory of {} ranks; expected at least 1", ranks));
  TrainedMemory part = trained;
  part.elements = part_of(trained.elements, ranks);
  const RankMemory of_part = plain_memory(part);
  const int64_t bytes = trained.elements * trained.element_bytes;
  return {.parameters = bytes,
          .gradients = bytes,
          .received = std::max(ranks > 1 ? bytes : 0, of_part.masters),
          .optimizer = of_part.optimizer,
          .masters = of_part.masters};
}

ShardedCap find_sharded_cap(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options) {
  constexpr int64_t kEffort = 1000000;  // buckets
  const PipelineOptions pipeline = pipeline_options(options);
  check_options(pipeline);
  std::vector<UniformCap> plans =
      distinct_plans(profile, options.rule, options.search, std::max<int64_t>(kEffort, 2 * std::ssize(profile.bytes))).plans;
  std::erase_if(plans, [&](const UniformCap& each) { return std::ssize(each.plan.buckets) > options.most_buckets; });
  if (plans.empty()) throw InputError(fmt::format("no cap makes at most {} buckets; expected more", options.most_buckets));
  Simulator simulator(profile, costs, options.ranks, pipeline);
  std::vector<double> period_s;
  std::vector<int64_t> order;
  for (const UniformCap& each : plans) {
    simulator.set_buckets(each.plan.buckets);
    order.resize(each.plan.buckets.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    period_s.push_back(simulator.period_s(order));
  }
  const UniformCap& best = best_of(plans, period_s);
  return {.cap_bytes = cap_of(best.caps),
          .caps = best.caps,
          .plan = best.plan,
          .pipeline = simulate_sharded(profile, best.plan, costs, options.ranks, pipeline)};
}

PredictedSharded predict_sharded(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options,
                                 double bucketed_backward_s, TrainedMemory trained) {
  const ShardedCap best = find_sharded_cap(profile, costs, options);
  const auto elements = [&](int64_t bytes) { return std::max<int64_t>(1, bytes / trained.element_bytes); };
  trained.elements = profile.total_bytes() / trained.element_bytes;
  PredictedSharded result{.cap_bytes = best.cap_bytes,
                          .lowest_cap_bytes = best.caps.lowest_cap_bytes,
                          .highest_cap_bytes = best.caps.highest_cap_bytes,
                          .buckets = std::ssize(best.plan.buckets),
                          .bound_s = sharded_bound_s(profile, costs, options.ranks, pipeline_options(options)),
                          .waited_s = best.pipeline.waited_s,
                          .computation_s = best.pipeline.computation_s,
                          .communication_s = best.pipeline.communication_s,
                          .agreement_s = options.agreement_s,
                          .ddp_bucket_size = elements(best.cap_bytes),
                          .allgather_bucket_size = (elements(profile.total_bytes()) + 1) / 2 * 2,
                          .plain = plain_memory(trained),
                          .sharded = sharded_memory(trained, options.ranks)};
  set_period(best.pipeline.period_s, profile.forward_s + bucketed_backward_s + profile.updates_s(), std::nullopt, result);
  return result;
}

void set_period(double period_s, double bucketed_period_s, const std::optional<double>& ordered_period_s, PredictedSharded& sharded) {
  const auto gain_over = [&](double other_s) { return other_s > 0 ? 1 - period_s / other_s : 0; };
  sharded.period_s = period_s;
  sharded.bucketed_period_s = bucketed_period_s;
  sharded.gain = gain_over(bucketed_period_s);
  if (ordered_period_s) sharded.gain_over_ordered = gain_over(*ordered_period_s);
}

}  // namespace firkin
