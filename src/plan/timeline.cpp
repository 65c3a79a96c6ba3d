#include "firkin/plan/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <queue>
#include <utility>

#include "firkin/base/error.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr double kLongAgo = -std::numeric_limits<double>::infinity();

std::vector<int64_t> order_of(const BucketPlan& plan) {
  return plan.launch_order.empty() ? ready_order(plan.buckets.size()) : plan.launch_order;
}

// ranks: the optimiser's step is divided among them.
double computation_s(const TensorProfile& profile, const SimulationOptions& options, size_t calls, double ranks = 1) {
  return profile.forward_s + profile.backward_s + profile.updates_s() / ranks + options.overhead_s * static_cast<double>(calls);
}

// The least a(x) / x for x up to `bytes`: on a curve of lines it lies at a point or at `bytes`.
double least_s_per_byte(const CostCurve& curve, double bytes) {
  double least = curve(bytes) / bytes;
  for (const CostPoint& point : curve.points()) {
    const auto size = static_cast<double>(point.bytes);
    if (size < bytes) least = std::min(least, point.seconds / size);
  }
  return least;
}

double least_s_per_byte(const CommCosts& costs, double bytes) {
  return std::min(least_s_per_byte(costs.isolated, bytes), least_s_per_byte(costs.gap, bytes));
}

BucketSpan launched_now(const SimulatedClock& clock, double link_free, double end, double ready_s, int64_t bucket) {
  return {.ready_s = ready_s, .start_s = std::max(clock.now(), link_free), .end_s = end, .bucket = bucket};
}

// calls: the collectives that all bytes go through, one after another.
double bound_s(const TensorProfile& profile, double computation_s, std::initializer_list<const CommCosts*> calls) {
  const auto bytes = static_cast<double>(profile.total_bytes());
  double s_per_byte = 0;
  for (const CommCosts* costs : calls) s_per_byte += bytes > 0 ? least_s_per_byte(*costs, bytes) : 0;
  return std::max(computation_s, bytes * s_per_byte);
}

int64_t checked_ranks(int64_t ranks) {
  if (ranks < 1) throw InputError(fmt::format("sharded among {} ranks; expected at least 1", ranks));
  return ranks;
}

}  // namespace

std::vector<int64_t> ready_order(size_t buckets) {
  std::vector<int64_t> order(buckets);
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

double first_need_s(const TensorProfile& profile, const Bucket& bucket) {
  const auto needed = profile.needed_s.begin() + bucket.first;
  return profile.knows_forward() ? *std::min_element(needed, needed + bucket.count) : 0;
}

Simulator::Simulator(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options, bool many_plans)
    : profile_(profile),
      options_(options),
      costs_(costs, many_plans),
      bytes_before_(profile.bytes.size() + 1, 0),
      update_before_(profile.bytes.size() + 1, 0) {
  for (size_t i = 0; i < profile.bytes.size(); ++i) {
    bytes_before_[i + 1] = bytes_before_[i] + profile.bytes[i];
    update_before_[i + 1] = update_before_[i] + (profile.update_s.empty() ? 0 : profile.update_s[i]);
  }
  for (size_t i = 0; i < profile.needed_s.size(); ++i) {
    auto before = static_cast<int64_t>(i) - 1;
    while (before >= 0 && profile.needed_s[static_cast<size_t>(before)] >= profile.needed_s[i])
      before = needed_before_[static_cast<size_t>(before)];
    needed_before_.push_back(before);
  }
}

Simulator::Simulator(const TensorProfile& profile, const ShardedCosts& costs, int64_t ranks, const SimulationOptions& options,
                     bool many_plans)
    : Simulator(profile, costs.reduce_scatter, options, many_plans) {
  gather_costs_.emplace(costs.all_gather, many_plans);
  ranks_ = static_cast<double>(checked_ranks(ranks));
}

// Returns what first_need_s() does, but in a step or two where forward needs tensors in roughly reverse order.
double Simulator::needed_s(const Bucket& bucket) const {
  if (!profile_.knows_forward()) return 0;
  auto tensor = static_cast<size_t>(bucket.first + bucket.count - 1);
  while (needed_before_[tensor] >= bucket.first) tensor = static_cast<size_t>(needed_before_[tensor]);
  return profile_.needed_s[tensor];
}

int64_t Simulator::bytes(const Bucket& bucket) const {
  return bytes_before_[static_cast<size_t>(bucket.first + bucket.count)] - bytes_before_[static_cast<size_t>(bucket.first)];
}

// Runs the backward pass and calls launched(position, end of the link's previous call, end of this one) per launch;
// stops if that returns false. Returns when the last all-reduce ends.
template <typename PieceAt, typename Launched>
double Simulator::launch_all(size_t count, SimulatedClock& clock, const PieceAt& piece_at, const Launched& launched) const {
  // Launches keep their order: a bucket that is not ready holds up those behind it.
  double busy_until = kLongAgo, latest_s = 0;
  for (size_t position = 0; position < count; ++position) {
    const Piece& piece = piece_at(position);
    latest_s = std::max(latest_s, piece.ready_s);
    clock.compute_to(latest_s + options_.overhead_s * static_cast<double>(position + 1), busy_until);
    const double free = busy_until;
    busy_until = std::max(clock.now() + piece.cost.isolated_s, free + piece.cost.gap_s);
    if (!launched(position, free, busy_until)) return busy_until;
  }
  const double host_s = profile_.backward_s + options_.overhead_s * static_cast<double>(count);
  clock.compute_to(std::max(clock.work(), host_s), busy_until);  // they may differ by rounding
  return busy_until;
}

double Simulator::end_s(std::span<const Bucket> buckets, double give_up_s) {
  SimulatedClock clock(options_);
  const auto piece = [&](size_t k) { return Piece{.cost = cost(buckets[k]), .ready_s = ready_s(buckets[k])}; };
  // No later end is earlier.
  const auto go_on = [&](size_t, double, double end) { return end <= give_up_s; };
  const double busy_until = launch_all(buckets.size(), clock, piece, go_on);
  if (busy_until > give_up_s) return busy_until;
  clock.wait_until(busy_until);
  return clock.now();
}

Timeline Simulator::backward(const BucketPlan& plan) {
  const std::vector<int64_t> order = order_of(plan);
  Timeline timeline;
  SimulatedClock clock(options_);
  const auto bucket = [&](size_t position) { return plan.buckets[static_cast<size_t>(order[position])]; };
  const auto piece = [&](size_t position) { return Piece{.cost = cost(bucket(position)), .ready_s = ready_s(bucket(position))}; };
  const double busy_until = launch_all(order.size(), clock, piece, [&](size_t position, double free, double end) {
    timeline.buckets.push_back(launched_now(clock, free, end, ready_s(bucket(position)), order[position]));
    timeline.buckets.back().bytes = bytes(bucket(position));
    return true;
  });
  timeline.compute_end_s = clock.now();
  clock.wait_until(busy_until);
  timeline.end_s = clock.now();
  timeline.exposed_s = timeline.end_s - profile_.backward_s;
  return timeline;
}

void Simulator::set_buckets(std::span<const Bucket> buckets) {
  pieces_.clear();
  for (const Bucket& bucket : buckets) {
    const auto first = static_cast<size_t>(bucket.first);
    const auto end = first + static_cast<size_t>(bucket.count);
    Piece& piece = pieces_.emplace_back(Piece{.cost = cost(bucket),
                                              .ready_s = ready_s(bucket),
                                              .needed_s = needed_s(bucket),
                                              .update_s = update_before_[end] - update_before_[first]});
    if (!gather_costs_) continue;
    piece.step_s = std::exchange(piece.update_s, 0) / ranks_;
    piece.gather = (*gather_costs_)(static_cast<double>(bytes(bucket)));
  }
  by_need_.resize(pieces_.size());
  std::iota(by_need_.rbegin(), by_need_.rend(), size_t{0});
  const auto needed_s = [&](size_t k) { return pieces_[k].needed_s; };
  const bool reversed = std::ranges::adjacent_find(by_need_, std::greater_equal(), needed_s) == by_need_.end();  // mostly
  if (!reversed) {
    std::ranges::reverse(by_need_);
    std::ranges::stable_sort(by_need_, {}, needed_s);
  }
  // Among buckets needed at the same time, the longest update is the most urgent: it runs while the others arrive.
  by_urgency_ = by_need_;
  if (!reversed) std::ranges::stable_sort(by_urgency_, {}, [&](size_t k) { return std::pair(pieces_[k].needed_s, -pieces_[k].update_s); });
  for (size_t rank = 0; rank < by_urgency_.size(); ++rank) pieces_[by_urgency_[rank]].urgency = rank;
}

std::vector<int64_t> Simulator::order_by_need() const {
  std::vector<size_t> room;
  room.reserve(pieces_.size());
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready({}, std::move(room));  // by urgency
  std::vector<int64_t> order;
  order.reserve(pieces_.size());
  double now = 0, launch = 0, link_free = kLongAgo;
  for (size_t next = 0; order.size() < pieces_.size();) {
    const auto calls = static_cast<double>(order.size() + 1);
    const auto ready_at = [&](size_t k) { return (pieces_[k].ready_s + options_.overhead_s * calls) * options_.compute_slowdown; };
    now = std::max(now, link_free);
    if (ready.empty()) now = std::max(now, ready_at(next));
    for (; next < pieces_.size() && ready_at(next) <= now; ++next) ready.push(pieces_[next].urgency);
    const size_t k = by_urgency_[ready.top()];
    ready.pop();
    order.push_back(static_cast<int64_t>(k));
    launch = std::max(launch, ready_at(k));
    link_free = std::max(launch + pieces_[k].cost.isolated_s, link_free + pieces_[k].cost.gap_s);
  }
  return order;
}

void Simulator::update(Piece& piece, SimulatedClock& clock, double busy_until) {
  clock.compute_to(clock.work() + piece.update_s, busy_until);
  piece.updated = true;
}

void Simulator::await(Piece& piece, SimulatedClock& clock, double busy_until, Pipeline* pipeline) {
  while (piece.arrival > clock.now()) {
    while (pieces_[arrivals_[next_arrival_]].updated) ++next_arrival_;
    Piece& next = pieces_[arrivals_[next_arrival_]];  // at the latest `piece` itself
    if (next.arrival <= clock.now()) {
      update(next, clock, busy_until);
      continue;
    }
    if (pipeline != nullptr) pipeline->waited_s += next.arrival - clock.now();
    clock.wait_until(next.arrival);
  }
  update(piece, clock, busy_until);
}

void Simulator::run_forward(SimulatedClock& clock, double busy_until, Pipeline* pipeline) {
  double done_s = 0;
  for (const size_t k : by_need_) {
    Piece& piece = pieces_[k];
    if (piece.updated) continue;
    clock.compute_to(clock.work() + (piece.needed_s - done_s), busy_until);
    done_s = piece.needed_s;
    await(piece, clock, busy_until, pipeline);
  }
  clock.compute_to(clock.work() + (profile_.forward_s - done_s), busy_until);
}

// Returns when the last gather ends.
double Simulator::step_and_gather(SimulatedClock& clock, double busy_until, Pipeline* pipeline) {
  const double stopped = clock.now();
  clock.wait_until(busy_until);
  if (pipeline != nullptr) pipeline->waited_s += clock.now() - stopped;
  std::iota(arrivals_.rbegin(), arrivals_.rend(), size_t{0});
  std::ranges::stable_sort(arrivals_, {}, [&](size_t k) { return pieces_[k].needed_s; });
  for (const size_t k : arrivals_) {
    Piece& piece = pieces_[k];
    clock.compute_to(clock.work() + piece.step_s + options_.overhead_s, busy_until);
    const double free = busy_until;
    busy_until = piece.arrival = std::max(clock.now() + piece.gather.isolated_s, free + piece.gather.gap_s);
    if (pipeline != nullptr) pipeline->communication_s += piece.gather.gap_s;
  }
  return busy_until;
}

double Simulator::period_s(std::span<const int64_t> order, Pipeline* pipeline) {
  for (Piece& piece : pieces_) piece.updated = false;
  arrivals_.assign(order.begin(), order.end());  // first in, first out
  next_arrival_ = 0;
  SimulatedClock clock(options_);
  const auto piece_at = [&](size_t position) -> Piece& { return pieces_[static_cast<size_t>(order[position])]; };
  double busy_until = launch_all(order.size(), clock, piece_at, [&](size_t position, double free, double end) {
    Piece& piece = piece_at(position);
    piece.arrival = end;
    if (pipeline == nullptr) return true;
    pipeline->buckets.push_back(launched_now(clock, free, end, piece.ready_s, order[position]));
    pipeline->communication_s += piece.cost.gap_s;
    return true;
  });
  const double backward_s = clock.now();
  clock.wait_until(clock.now() + options_.agreement_s);
  if (gather_costs_) busy_until = step_and_gather(clock, busy_until, pipeline);
  const double forward_start = clock.now();
  run_forward(clock, busy_until, pipeline);
  const double period = clock.now();
  if (pipeline == nullptr) return period;

  // The simulated cycle begins with backward; the reported step begins with forward.
  pipeline->period_s = period;
  pipeline->forward_end_s = period - forward_start;
  pipeline->backward_end_s = pipeline->forward_end_s + backward_s;
  const size_t calls = order.size() * (gather_costs_ ? 2 : 1);
  pipeline->computation_s = computation_s(profile_, options_, calls, ranks_);
  for (BucketSpan& span : pipeline->buckets) {
    for (double* seconds : {&span.ready_s, &span.start_s, &span.end_s}) *seconds += pipeline->forward_end_s;
  }
  return period;
}

Pipeline Simulator::pipeline(const BucketPlan& plan) {
  set_buckets(plan.buckets);
  Pipeline pipeline;
  period_s(order_of(plan), &pipeline);
  for (BucketSpan& span : pipeline.buckets) span.bytes = bytes(plan.buckets[static_cast<size_t>(span.bucket)]);
  return pipeline;
}

void check_options(const SimulationOptions& options) {
  check_at_least("the overhead per call", options.overhead_s, 0);
  check_at_least("the slowdown of computation", options.compute_slowdown, 1);
  check_at_least("the time to agree", options.agreement_s, 0);
}

Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options) {
  check_options(options);
  return Simulator(profile, costs, options, /*many_plans=*/false).backward(plan);
}

Pipeline simulate_pipeline(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options) {
  check_options(options);
  return Simulator(profile, costs, options, /*many_plans=*/false).pipeline(plan);
}

Pipeline simulate_sharded(const TensorProfile& profile, const BucketPlan& plan, const ShardedCosts& costs, int64_t ranks,
                          const SimulationOptions& options) {
  check_options(options);
  return Simulator(profile, costs, ranks, options, /*many_plans=*/false).pipeline(plan);
}

double pipeline_bound_s(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options) {
  check_options(options);
  const double computation = computation_s(profile, options, profile.bytes.empty() ? 0 : 1) + options.agreement_s;
  return bound_s(profile, computation, {&costs});
}

double sharded_bound_s(const TensorProfile& profile, const ShardedCosts& costs, int64_t ranks, const SimulationOptions& options) {
  check_options(options);
  const auto among = static_cast<double>(checked_ranks(ranks));
  const double computation = computation_s(profile, options, profile.bytes.empty() ? 0 : 2, among) + options.agreement_s;
  return bound_s(profile, computation, {&costs.reduce_scatter, &costs.all_gather});
}

}  // namespace firkin
