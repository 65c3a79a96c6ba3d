#include "ordered.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/launch_order.h"
#include "firkin/stats/estimates.h"

#include <torch/optim/lbfgs.h>

namespace firkin {
namespace {

constexpr const char* kUnusedGradients =
    "the gradients of the last step were neither used nor awaited, because under the strategy ordered a plain optimizer.step() misses "
    "them; expected OverlappedOptimizer::step(), or drain() before gradients are read";

// Due after the second step, then after twice as many each time, and every 64: ready times move most in the beginning.
bool is_choice_due(int64_t steps) {
  constexpr int64_t kLongest = 64;
  return steps > 1 && (steps % kLongest == 0 || (steps < kLongest && (steps & (steps - 1)) == 0));
}

}  // namespace

void LaunchTimes::add(const std::vector<BucketStats>& stats, const std::vector<int64_t>& launch_order, std::vector<double> first_use_s,
                      double forward_s) {
  std::vector<double> row(stats.size());
  bytes_on_wire_.resize(stats.size());
  double busy_s = 0;
  double last_end_s = 0;
  for (size_t i = 0; i < stats.size(); ++i) {
    const auto bucket = launch_order.empty() ? i : static_cast<size_t>(launch_order[i]);
    row[bucket] = stats[i].ready_s;
    bytes_on_wire_[bucket] = static_cast<double>(stats[i].bytes_on_wire);
    busy_s += std::max(0.0, stats[i].end_s - std::max(stats[i].launch_s, last_end_s));
    last_end_s = std::max(last_end_s, stats[i].end_s);
  }
  row.insert(row.end(), first_use_s.begin(), first_use_s.end());
  row.insert(row.end(), {backward_s_, forward_s, -busy_s});
  rows_.push_back(std::move(row));
  if (rows_.size() > kMostSteps) rows_.erase(rows_.begin());
}

std::vector<int64_t> LaunchTimes::order(const ProcessGroup& group, int root, std::optional<double> slack) const {
  std::vector<double> all;
  for (const std::vector<double>& row : rows_) all.insert(all.end(), row.begin(), row.end());
  const std::vector<double> slowest = max_over_ranks(group, all);
  const size_t buckets = bytes_on_wire_.size();
  const size_t width = 2 * buckets + 3;
  std::vector<std::vector<double>> rows;
  for (size_t at = 0; at < slowest.size(); at += width)
    rows.emplace_back(slowest.begin() + static_cast<std::ptrdiff_t>(at), slowest.begin() + static_cast<std::ptrdiff_t>(at + width));
  const std::vector<double> usual = column_medians(rows);
  // The least over the ranks: what a collective waited for another rank is no property of the link, and only shows on
  // ranks that launched first.
  double busy_s = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& row : rows) busy_s = std::min(busy_s, -row[width - 1]);
  const double bytes = std::accumulate(bytes_on_wire_.begin(), bytes_on_wire_.end(), 0.0);
  ObservedTraining training;
  for (size_t i = 0; i < buckets; ++i) {
    training.transfer_s.push_back(bytes == 0 ? 0 : busy_s * bytes_on_wire_[i] / bytes);
    training.needed_s.push_back(usual[buckets + i]);
  }
  training.forward_s = usual[width - 2];
  for (const std::vector<double>& row : rows) {
    training.steps.push_back({.ready_s = {row.begin(), row.begin() + static_cast<std::ptrdiff_t>(buckets)}, .backward_s = row[width - 3]});
  }
  const LaunchOrder chosen = slack ? launch_order_with_slack(training, *slack) : robust_launch_order(training);
  return list_of_rank(group, chosen.order, root);  // machines may round differently
}

Ordered::Ordered(Synchronizer& synchronizer) : FirstUse(synchronizer, kUnusedGradients) {
  renewed();
}

Ordered::~Ordered() {
  listening_.reset();
  if (anything_late_) {
    TORCH_WARN("DataParallel: destroyed with gradients of the last step in flight; ", kUnusedGradients);
  }
}

void Ordered::renewed() {
  FirstUse::renewed();
  traces_.assign(is_late_.size(), {});
  forget_buckets();
}

void Ordered::forget_buckets() {
  times_ = {};
  steps_ = 0;
  next_launch_order_.clear();
  is_forward_observed_ = false;
}

bool Ordered::may_be_late(int64_t bucket) const {
  return !synchronizer_.transport().communication().plan.launch_order.empty() && FirstUse::may_be_late(bucket);
}

void Ordered::begun() {
  steps_are_lost_ = std::exchange(are_unclaimed_, false);
  receive_all();
  observe();
  if (!next_launch_order_.empty()) synchronizer_.transport().set_launch_order(std::exchange(next_launch_order_, {}));
}

// Records the last step: all its buckets have arrived, and the forward behind it is over.
void Ordered::observe() {
  if (!std::exchange(is_forward_observed_, false)) return;
  const BucketTransport& transport = synchronizer_.transport();
  last_forward_ = {.first_use_s = {}, .end_s = since_step_ended_s()};
  for (size_t i = 0; i < is_late_.size(); ++i) last_forward_.first_use_s.push_back(modules_->first_use_s(i));
  times_.add(transport.finished_stats(), transport.communication().plan.launch_order, first_use_of_buckets(last_forward_.first_use_s),
             last_forward_.end_s);
}

void Ordered::sending() {
  times_.backward_ended(seconds_since(synchronizer_.transport().started_at()));
}

void Ordered::received(const StepAgreement& agreement, bool is_first) {
  const BucketTransport& transport = synchronizer_.transport();
  if (is_first) {
    modules_->learn();
  } else {
    is_forward_observed_ = true;
    const StepSetup& setup = synchronizer_.setup();
    const bool is_given = takes_plan(setup.options) && !setup.options.plan->launch_order.empty();
    // For the next step, which begins with it: nothing of this one is under way then.
    if (is_choice_due(++steps_) && !is_given) {
      next_launch_order_ = times_.order(setup.control, agreement.first_with_data(), setup.options.launch_slack);
    }
  }
  is_late_.assign(is_late_.size(), false);
  deferred_.clear();
  for (const int64_t bucket : transport.not_received()) {
    for (const int64_t parameter : transport.parameters_in(bucket)) is_late_[static_cast<size_t>(parameter)] = true;
    anything_late_ = true;
    are_unclaimed_ = true;
  }
  for (size_t i = 0; anything_late_ && i < traces_.size(); ++i) {
    const at::Tensor& gradient = tensor_of(i).grad();
    traces_[i] = gradient.defined() ? trace_of(gradient) : Trace{};
  }
  begin_forward();
}

// Throws if gradients were changed since backward, for example clipped by a norm that lacks those in flight.
void Ordered::check_unchanged() const {
  for (size_t i = 0; i < traces_.size(); ++i) {
    const at::Tensor& gradient = tensor_of(i).grad();
    if (is_late_[i] || !gradient.defined() || trace_of(gradient) == traces_[i]) continue;
    throw RuntimeError(
        fmt::format("OverlappedOptimizer: the gradient of {} was changed (clipped?) while others were in flight; expected "
                    "OverlappedOptions::clip_norm, or drain() before gradients are changed",
                    synchronizer_.setup().parameters[i].name));
  }
}

void Ordered::step(torch::optim::Optimizer& optimizer, double clip_each_norm) {
  const auto held = enter_after_step();
  if (anything_late_) {
    if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
      throw InputError(
          "the strategy ordered does not work with L-BFGS, which needs all gradients at once; expected another strategy or optimiser");
    }
    if (deferred_.empty()) check_unchanged();
  }
  are_unclaimed_ = false;
  clip_each(optimizer, clip_each_norm);
  optimizer.step();
  if (anything_late_) deferred_.add(optimizer, clip_each_norm);
}

void Ordered::receive_rest() {
  are_unclaimed_ = false;
  FirstUse::receive_rest();
}

// Receives the buckets of these parameters, in launch order.
void Ordered::receive_those(const std::vector<size_t>& parameters) {
  const BucketTransport& transport = synchronizer_.transport();
  std::vector<int64_t> buckets = transport.not_received();
  std::erase_if(buckets, [&](int64_t bucket) {
    return std::ranges::none_of(parameters, [&](size_t parameter) {
      const auto parts = transport.buckets()->buckets_of(transport.position_of(parameter));
      return std::ranges::find(parts, bucket) != parts.end();
    });
  });
  if (!buckets.empty()) receive_in_turn(buckets);
}

// Runs the optimiser once on all buckets that have arrived, which in Python costs as much as on one. While the next
// bucket has not arrived, it runs on others that have.
void Ordered::receive_in_turn(const std::vector<int64_t>& buckets) {
  const BucketTransport& transport = synchronizer_.transport();
  for (const int64_t bucket : buckets) {
    while (!transport.is_received(bucket)) {
      std::vector<int64_t> come = transport.not_received();
      std::erase_if(come, [&](int64_t each) { return !transport.has_come(each); });
      if (come.empty()) come = {bucket};
      receive_late(come);
    }
  }
  if (!transport.not_received().empty()) return;
  anything_late_ = false;
  deferred_.clear();
}

void Ordered::receive_all() {
  if (anything_late_) receive_in_turn(synchronizer_.transport().not_received());
}

void Ordered::receive_late(const std::vector<int64_t>& buckets) {
  BucketTransport& transport = synchronizer_.transport();
  std::vector<size_t> complete;
  for (const int64_t bucket : buckets) {
    RECORD_USER_SCOPE("forward waits");
    const std::vector<size_t> more = transport.receive_bucket(bucket, [this, &transport] {
      return fmt::format("{} of step {}, in the forward after it", transport.first_pending(), synchronizer_.steps_finished() - 1);
    });
    complete.insert(complete.end(), more.begin(), more.end());
  }
  transport.settled().set();
  if (steps_are_lost_ || complete.empty()) return;
  if (deferred_.empty()) return transport.adopt(complete);
  RECORD_USER_SCOPE("optimiser");
  std::vector<at::Tensor> parameters;
  for (const size_t parameter : complete) parameters.push_back(tensor_of(parameter));
  deferred_.run(parameters, [&] { transport.adopt(complete); });
  transport.settled().set();
}

}  // namespace firkin
