#include "measuring/allreduce_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

constexpr double kSampleSeconds = 0.5e-3;  // about what the calls of one sample take together
constexpr double kLongCall = 0.05;         // in seconds; calls that take longer need no warm-up
constexpr int kQueueLength = 4;
constexpr int kMostCalls = 100;     // per sample
constexpr int kMostSamples = 1000;  // per visit
// The share of the budget that one queue may take. Each size runs at least four: for the check, in the first visit and
// in two rounds. With sizes that grow by factors of four, all queues together take half of the budget.
constexpr double kQueueShare = 0.1;
constexpr size_t kTotals = 3;  // times after those of samples: the total of each kind, and the time since the beginning

int at_most(double count, int most) {
  return static_cast<int>(std::clamp<double>(count, 1, most));
}

}  // namespace

AllReduceSchedule::AllReduceSchedule(const std::vector<TimedSize>& sizes, const AllReduceScheduleOptions& options)
    : options_(options), random_(options.seed) {
  for (const auto& [bytes, collective] : sizes) {
    Size& size = sizes_.emplace_back();
    size.series = {.collective = collective, .bytes = bytes, .isolated_s = {}, .gap_s = {}};
    size.queue = at_most(static_cast<double>(options.queue_bytes) / static_cast<double>(bytes), kQueueLength);
  }
  if (sizes_.empty()) stage_ = Stage::kDone;
  visit_ = plan_visit();
}

// Whether a call takes so long that none is spent on a warm-up. A small size's first call says nothing about that: it may
// have set up connections.
bool AllReduceSchedule::is_long(const Size& size) const {
  return size.once_s >= kLongCall && size.series.bytes > kMiB;
}

std::optional<AllReduceVisit> AllReduceSchedule::plan_visit() const {
  if (stage_ == Stage::kDone) return std::nullopt;
  const Size& size = sizes_[current()];
  AllReduceVisit visit{.size = current(), .calls = size.series.calls_per_sample, .queue = size.queue};
  const bool queues = size.queue > 1;
  switch (stage_) {
    case Stage::kProbing:
      visit.isolated = 1;
      break;
    case Stage::kProbingAgain:
      visit.isolated = size.once_s < kLongCall ? 2 : 1;
      break;
    case Stage::kFirstVisit:
      visit.checks = options_.checks;
      visit.warms_up = !is_long(size);
      visit.isolated = 1;
      visit.queued = queues ? 1 : 0;
      break;
    case Stage::kRounds: {
      const double share_s = remaining_s() / static_cast<double>((kMostRounds - round_) * order_.size() - position_) / (queues ? 2 : 1);
      const auto samples = [&](double cost_s) { return at_most(share_s / std::max(cost_s, 1e-6), options_.delay_s ? 1 : kMostSamples); };
      visit.warms_up = !is_long(size);
      visit.isolated = samples(size.isolated_cost_s);
      visit.queued = queues ? samples(size.queued_cost_s) : 0;
      break;
    }
    case Stage::kLastChecks:
      visit.checks = true;
      break;
    case Stage::kDone:
      break;
  }
  return visit;
}

void AllReduceSchedule::plan_samples(Size& size) const {
  size.series.calls_per_sample = at_most(std::ceil(kSampleSeconds / std::max(size.once_s, 1e-9)), kMostCalls);
  const double queue_s = std::min(kQueueShare * options_.seconds, options_.delay_s.value_or(std::numeric_limits<double>::infinity()) / 2);
  size.queue = std::min(size.queue, at_most(queue_s / std::max(size.once_s, 1e-9), kQueueLength));
}

void AllReduceSchedule::keep(const AllReduceVisit& visit, std::span<const double> seconds, Size& size) const {
  const auto isolated = seconds.first(static_cast<size_t>(visit.isolated));
  const auto queued = seconds.subspan(isolated.size(), static_cast<size_t>(visit.queued));
  const auto totals = seconds.last(kTotals);
  AllReduceSeries& series = size.series;
  if (size.visits == 1 && !is_long(size)) {  // there is time for another visit, so the first one was a warm-up
    series.isolated_s.clear();
    series.gap_s.clear();
  }
  series.isolated_s.insert(series.isolated_s.end(), isolated.begin(), isolated.end());
  series.gap_s.insert(series.gap_s.end(), queued.begin(), queued.end());
  if (stage_ == Stage::kRounds) series.block_s.push_back(median(isolated));
  size.isolated_cost_s = totals[0] / std::max(visit.isolated, 1);
  size.queued_cost_s = totals[1] / std::max(visit.queued, 1);
  ++size.visits;
}

void AllReduceSchedule::tell(std::span<const double> seconds, int64_t wrong) {
  const size_t expected = visit_ ? static_cast<size_t>(visit_->isolated + visit_->queued) + kTotals : 0;
  if (!visit_ || seconds.size() != expected) {
    throw std::invalid_argument(fmt::format("{} times of a visit; expected {}", seconds.size(), expected));
  }
  Size& size = sizes_[visit_->size];
  const auto totals = seconds.last(kTotals);
  size.visit_s = totals[2] - elapsed_s_;
  elapsed_s_ = totals[2];
  size.series.wrong += wrong;
  if (stage_ == Stage::kProbing) size.once_s = seconds[0];
  if (stage_ == Stage::kProbingAgain) size.once_s = std::min(size.once_s, std::ranges::min(seconds.first(seconds.size() - kTotals)));
  if (stage_ == Stage::kFirstVisit && wants_last_check(size)) last_checks_s_ += size.visit_s - totals[0] - totals[1];
  if (stage_ == Stage::kFirstVisit || stage_ == Stage::kRounds) keep(*visit_, seconds, size);
  advance();
  visit_ = plan_visit();
}

void AllReduceSchedule::advance() {
  Size& size = sizes_[current()];
  switch (stage_) {
    case Stage::kProbing:
    case Stage::kProbingAgain:
      if (stage_ == Stage::kProbing && !is_long(size)) {
        stage_ = Stage::kProbingAgain;
      } else {
        plan_samples(size);
        stage_ = Stage::kFirstVisit;
      }
      return;
    case Stage::kFirstVisit:
      ++position_;
      begin_size();
      return;
    case Stage::kRounds:
      if (++position_ == order_.size()) {
        ++round_;
        begin_round();
      }
      if (stage_ == Stage::kRounds && options_.delay_s && elapsed_s_ + expected_s() > options_.seconds) stage_ = Stage::kDone;
      return;
    case Stage::kLastChecks:
      ++position_;
      begin_last_check();
      return;
    case Stage::kDone:
      return;
  }
}

void AllReduceSchedule::begin_size() {
  stage_ = Stage::kProbing;
  if (position_ < sizes_.size() && options_.delay_s) {
    is_cut_short_ = elapsed_s_ + expected_s() > options_.seconds;
    if (is_cut_short_ || expected_s() > *options_.delay_s) sizes_.resize(position_);
  }
  if (is_cut_short_) {
    stage_ = Stage::kDone;
  } else if (position_ == sizes_.size()) {
    order_.resize(sizes_.size());
    std::iota(order_.begin(), order_.end(), 0);
    begin_round();
  }
}

void AllReduceSchedule::begin_round() {
  position_ = 0;
  const bool is_enough = round_ == kMostRounds || (round_ >= kFewestRounds && remaining_s() <= 0);
  stage_ = is_enough ? Stage::kLastChecks : Stage::kRounds;
  if (is_enough) {
    begin_last_check();
  } else {
    std::ranges::shuffle(order_, random_);
  }
}

void AllReduceSchedule::begin_last_check() {
  while (position_ < sizes_.size() && !wants_last_check(sizes_[position_])) ++position_;
  if (position_ == sizes_.size()) stage_ = Stage::kDone;
}

double AllReduceSchedule::expected_s() const {
  if (stage_ == Stage::kDone) return 0;
  const Size& size = sizes_[current()];
  if (stage_ == Stage::kRounds || stage_ == Stage::kLastChecks) return size.visit_s;
  if (stage_ != Stage::kProbing) {
    return size.once_s * ((visit_->warms_up ? 1 : 0) + visit_->isolated * visit_->calls + visit_->queued * visit_->queue);
  }
  if (position_ < 2) return 0;
  const Size& a = sizes_[position_ - 2];
  const Size& b = sizes_[position_ - 1];
  const double per_byte_s = std::max(b.once_s - a.once_s, 0.0) / static_cast<double>(b.series.bytes - a.series.bytes);
  return b.once_s + per_byte_s * static_cast<double>(size.series.bytes - b.series.bytes);
}

std::vector<AllReduceSeries> AllReduceSchedule::series() const {
  std::vector<AllReduceSeries> list;
  for (const Size& size : sizes_) {
    AllReduceSeries& series = list.emplace_back(size.series);
    if (series.gap_s.empty()) continue;
    const double isolated_s = median(series.isolated_s);
    for (double& sample : series.gap_s) sample = queued_gap_s(sample, isolated_s, size.queue);
  }
  return list;
}

AllReduceTable allreduce_table(const std::vector<AllReduceSeries>& series, int64_t world_size) {
  AllReduceTable table;
  for (const AllReduceSeries& size : series) {
    AllReduceRow& row = table.emplace_back(row_of_samples(size.bytes, world_size, size.isolated_s, size.gap_s));
    row.calls_per_sample = size.calls_per_sample;
    row.wrong = size.wrong;
  }
  return table;
}

std::vector<CollectiveRow> collective_rows(const std::vector<AllReduceSeries>& series, int64_t world_size) {
  constexpr std::array<const char*, kCollectives.size()> kNames = {"all_reduce", "reduce_scatter", "all_gather"};
  std::vector<CollectiveRow> rows;
  for (const AllReduceSeries& one : series) {
    rows.push_back({.collective = kNames[static_cast<size_t>(one.collective)],
                    .bytes = one.bytes,
                    .world_size = world_size,
                    .seconds = median(one.isolated_s),
                    .gap_s = one.gap_s.empty() ? std::nullopt : std::optional(median(one.gap_s)),
                    .ci_s = series_interval(one.isolated_s),
                    .samples = std::ssize(one.isolated_s),
                    .calls_per_sample = one.calls_per_sample,
                    .wrong = one.wrong});
    if (one.collective == Collective::kAllReduce) continue;
    const auto all_reduce = std::ranges::find_if(
        series, [&one](const AllReduceSeries& other) { return other.collective == Collective::kAllReduce && other.bytes == one.bytes; });
    if (all_reduce == series.end()) continue;
    const PairedRatio ratio = paired_ratio(one.block_s, all_reduce->block_s);
    rows.back().ratio_to_allreduce = ratio.ratio;
    rows.back().ratio_to_allreduce_ci = ratio.interval;
  }
  return rows;
}

}  // namespace firkin
