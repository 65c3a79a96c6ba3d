#include "pipeline_run.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

namespace firkin {
namespace {

constexpr double kLongAgo = -std::numeric_limits<double>::infinity();

}  // namespace

void PipelineClock::advance(double seconds, double comm_s) {
  wall_ += seconds;
  comm_ = comm_s;
  if (recording_) history_.emplace_back(comm_, wall_);
}

void PipelineClock::compute(double work_s, double busy_until) {
  if (busy_until > comm_) {
    const double busy_s = (busy_until - comm_) * options_.comm_slowdown;
    const double needed_s = work_s * options_.compute_slowdown;
    if (needed_s <= busy_s) return advance(needed_s, comm_ + needed_s / options_.comm_slowdown);
    work_s -= busy_s / options_.compute_slowdown;
    advance(busy_s, busy_until);
  }
  advance(work_s, comm_ + work_s / options_.comm_slowdown);
}

void PipelineClock::wait_until(double comm_s) {
  if (comm_s > comm_) advance(comm_s - comm_, comm_s);
}

double PipelineClock::wall_at(double comm_s) const {
  const auto after = std::ranges::lower_bound(history_, comm_s, {}, &std::pair<double, double>::first);
  if (after == history_.begin() || after == history_.end()) return after == history_.end() ? wall_ : after->second;
  const auto before = after - 1;
  return before->second + (after->second - before->second) * (comm_s - before->first) / (after->first - before->first);
}

PipelineRun::PipelineRun(const TensorProfile& profile, const CommCosts& costs, const PipelineOptions& options)
    : profile_(profile),
      options_(options),
      costs_(costs),
      bytes_before_(profile.bytes.size() + 1, 0),
      update_before_(profile.bytes.size() + 1, 0),
      needed_s_(profile.needed_s),
      tensors_by_need_(profile.bytes.size()),
      unit_of_tensor_(profile.bytes.size()) {
  needed_s_.resize(profile.bytes.size(), 0);
  for (size_t i = 0; i < profile.bytes.size(); ++i) {
    bytes_before_[i + 1] = bytes_before_[i] + profile.bytes[i];
    update_before_[i + 1] = update_before_[i] + (profile.update_s.empty() ? 0 : profile.update_s[i]);
  }
  std::iota(tensors_by_need_.begin(), tensors_by_need_.end(), size_t{0});
  std::ranges::stable_sort(tensors_by_need_, {}, [&](size_t i) { return needed_s_[i]; });
}

int64_t PipelineRun::bytes(const Bucket& bucket) const {
  const int64_t total = bytes_before_[static_cast<size_t>(bucket.first + bucket.count)] - bytes_before_[static_cast<size_t>(bucket.first)];
  return part_begin(total, bucket.part + 1, bucket.parts) - part_begin(total, bucket.part, bucket.parts);
}

void PipelineRun::set_buckets(std::span<const Bucket> buckets) {
  pieces_.clear();
  units_.clear();
  for (size_t k = 0; k < buckets.size(); ++k) {
    const Bucket& bucket = buckets[k];
    const auto first = static_cast<size_t>(bucket.first);
    const auto end = first + static_cast<size_t>(bucket.count);
    if (bucket.part == 0) {
      units_.push_back({.needed_s = *std::min_element(needed_s_.begin() + bucket.first, needed_s_.begin() + bucket.first + bucket.count),
                        .update_s = update_before_[end] - update_before_[first],
                        .first_bucket = k,
                        .parts = static_cast<size_t>(bucket.parts)});
      std::fill(unit_of_tensor_.begin() + bucket.first, unit_of_tensor_.begin() + bucket.first + bucket.count, units_.size() - 1);
    }
    const double copies_s = options_.simulation.copy_s_per_byte * static_cast<double>(bytes_before_[end]);
    pieces_.push_back({costs_(static_cast<double>(bytes(bucket))), profile_.ready_s[end - 1] + copies_s, units_.size() - 1});
  }
}

void PipelineRun::order_by_need(std::vector<int64_t>& order, bool patient) {
  const SimulationOptions& simulation = options_.simulation;
  // Of buckets that are needed at once, one with a long update first: it runs while the others arrive.
  using Candidate = std::tuple<double, double, size_t>;
  const auto candidate = [&](size_t k) { return Candidate(units_[pieces_[k].unit].needed_s, -units_[pieces_[k].unit].update_s, k); };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> ready;
  const double backward_end = profile_.backward_s * simulation.compute_slowdown;
  channel_free_.assign(static_cast<size_t>(simulation.channels), kLongAgo);
  order.clear();
  double now = 0, launch = 0;
  for (size_t next = 0; order.size() < pieces_.size();) {
    const auto calls = static_cast<double>(order.size() + 1);
    const auto ready_s = [&](size_t k) { return (pieces_[k].host_s + simulation.overhead_s * calls) * simulation.compute_slowdown; };
    const auto channel = std::ranges::min_element(channel_free_);
    now = std::max(now, *channel);
    if (ready.empty()) now = std::max(now, ready_s(next));
    for (; next < pieces_.size() && ready_s(next) <= now; ++next) ready.push(candidate(next));
    const size_t k = std::get<size_t>(ready.top());
    const CallCost& cost = pieces_[k].cost;
    const double slowdown = now < backward_end ? simulation.comm_slowdown : 1;
    const double end = std::max(std::max(launch, ready_s(k)) + cost.isolated_s * slowdown, *channel + cost.gap_s * slowdown);
    if (patient && next < pieces_.size() && candidate(next) < ready.top() && ready_s(next) < end) {
      now = ready_s(next);
      continue;
    }
    ready.pop();
    order.push_back(static_cast<int64_t>(k));
    launch = std::max(launch, ready_s(k));
    *channel = end;
  }
}

// The backward pass. Returns when the last all-reduce ends, on the communication's clock.
double PipelineRun::launch_all(std::span<const int64_t> order, PipelineClock& clock, Pipeline* pipeline) {
  channel_free_.assign(static_cast<size_t>(options_.simulation.channels), kLongAgo);
  comm_end_.resize(order.size());
  for (Unit& unit : units_) {
    unit.parts_left = unit.parts;
    unit.arrival = kLongAgo;
    unit.updated = false;
  }
  double host = 0, busy_until = kLongAgo, ready_host = 0;
  for (size_t position = 0; position < order.size(); ++position) {
    const auto k = static_cast<size_t>(order[position]);
    const Piece& piece = pieces_[k];
    ready_host = std::max(ready_host, piece.host_s);
    const double launch_host = ready_host + options_.simulation.overhead_s * static_cast<double>(position + 1);
    clock.compute(launch_host - host, busy_until);
    host = launch_host;
    const auto channel = std::ranges::min_element(channel_free_);
    const double free = *channel;
    *channel = std::max(clock.comm() + piece.cost.isolated_s, free + piece.cost.gap_s);
    comm_end_[position] = *channel;
    busy_until = std::max(busy_until, *channel);
    Unit& unit = units_[piece.unit];
    unit.arrival = std::max(unit.arrival, *channel);
    if (pipeline == nullptr) continue;
    // start_s is on the communication's clock for now: its wall time is known when the channel has become free.
    pipeline->buckets.push_back({.start_s = std::max(clock.comm(), free),
                                 .launch_s = clock.wall(),
                                 .bucket = order[position],
                                 .channel = channel - channel_free_.begin()});
  }
  const double host_total = profile_.backward_s + options_.simulation.copy_s_per_byte * static_cast<double>(bytes_before_.back()) +
                            options_.simulation.overhead_s * static_cast<double>(order.size());
  clock.compute(std::max(0.0, host_total - host), busy_until);
  return busy_until;
}

void PipelineRun::list_arrivals(std::span<const int64_t> order) {
  arrivals_.clear();
  for (const int64_t k : order) {
    const size_t unit = pieces_[static_cast<size_t>(k)].unit;
    if (--units_[unit].parts_left == 0) arrivals_.push_back(unit);
  }
  if (options_.simulation.channels > 1) std::ranges::stable_sort(arrivals_, {}, [&](size_t unit) { return units_[unit].arrival; });
  next_arrival_ = 0;
}

void PipelineRun::update(Unit& unit, PipelineClock& clock, double busy_until, Pipeline* pipeline) {
  const double start = clock.wall();
  clock.compute(unit.update_s, busy_until);
  unit.updated = true;
  if (pipeline != nullptr) pipeline->updates.push_back({static_cast<int64_t>(unit.first_bucket), start, clock.wall()});
}

void PipelineRun::await(Unit& unit, PipelineClock& clock, double busy_until, Pipeline* pipeline) {
  while (unit.arrival > clock.comm()) {
    while (units_[arrivals_[next_arrival_]].updated) ++next_arrival_;
    Unit& next = units_[arrivals_[next_arrival_]];  // this one at the latest
    if (next.arrival <= clock.comm()) {
      update(next, clock, busy_until, pipeline);
      continue;
    }
    const double start = clock.wall();
    clock.wait_until(next.arrival);
    if (pipeline == nullptr) continue;
    const auto bucket = static_cast<int64_t>(unit.first_bucket);
    std::vector<PipelineWait>& waits = pipeline->waits;
    if (!waits.empty() && waits.back().bucket == bucket && waits.back().end_s == start) {
      waits.back().end_s = clock.wall();  // another bucket has come, and it takes no time to update
    } else {
      waits.push_back({bucket, start, clock.wall()});
    }
  }
  update(unit, clock, busy_until, pipeline);
}

void PipelineRun::run_forward(PipelineClock& clock, double busy_until, Pipeline* pipeline) {
  double done_s = 0;
  for (const size_t tensor : tensors_by_need_) {
    Unit& unit = units_[unit_of_tensor_[tensor]];
    if (unit.updated) continue;
    clock.compute(needed_s_[tensor] - done_s, busy_until);
    done_s = needed_s_[tensor];
    await(unit, clock, busy_until, pipeline);
  }
  clock.compute(profile_.forward_s - done_s, busy_until);
}

double PipelineRun::period_s(std::span<const int64_t> order, Pipeline* pipeline) {
  PipelineClock clock(options_.simulation);
  if (pipeline != nullptr) clock.record();
  const double busy_until = launch_all(order, clock, pipeline);
  const double backward_s = clock.wall();
  clock.stand_still(options_.agreement_s);
  const double forward_start = clock.wall();
  list_arrivals(order);
  run_forward(clock, busy_until, pipeline);
  if (pipeline == nullptr) return clock.wall();

  // The cycle began with backward; the step begins with forward.
  const double period = clock.wall();
  pipeline->period_s = period;
  pipeline->forward_end_s = period - forward_start;
  pipeline->backward_end_s = pipeline->forward_end_s + backward_s;
  for (size_t position = 0; position < order.size(); ++position) {
    BucketSpan& span = pipeline->buckets[position];
    const auto k = static_cast<size_t>(order[position]);
    span.launch_s += pipeline->forward_end_s;
    span.start_s = pipeline->forward_end_s + clock.wall_at(span.start_s);
    span.end_s = pipeline->forward_end_s + clock.wall_at(comm_end_[position]);
    pipeline->communication_s += pieces_[k].cost.gap_s / static_cast<double>(options_.simulation.channels);
  }
  for (PipelineWait& wait : pipeline->waits) {
    wait = {wait.bucket, wait.start_s - forward_start, wait.end_s - forward_start};
    pipeline->waited_s += wait.end_s - wait.start_s;
  }
  for (PipelineUpdate& update : pipeline->updates) {
    update = {update.bucket, update.start_s - forward_start, update.end_s - forward_start};
  }
  return period;
}

}  // namespace firkin
