#include "profiler_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <set>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/stats/estimates.h"
#include "trace_findings.h"

namespace firkin {
namespace {

double median_of_steps(const std::vector<TraceStep>& steps, const auto& value) {
  std::vector<double> values;
  for (const TraceStep& step : steps) values.push_back(value(step));
  return median(values);
}

// Throws InputError unless the traces are of different ranks of one run: they state the same number of ranks, have the
// same gradients and buckets, and were recorded at the same time.
void check_one_run(const std::vector<TraceSteps>& ranks) {
  const TraceSteps& first = ranks.front();
  std::set<int64_t> given;
  for (const TraceSteps& other : ranks) {
    const auto fail = [&](const std::string& what) {
      throw InputError(fmt::format("{}: {}; expected traces of different ranks of one run", other.file, what));
    };
    if (other.rank >= 0 && !given.insert(other.rank).second) fail(fmt::format("rank {}, as in another trace", other.rank));
    if (&other == &first) continue;
    if (other.world_size != first.world_size) fail(fmt::format("{} ranks, in {} {}", other.world_size, first.file, first.world_size));
    if (other.elements != first.elements) fail(fmt::format("other gradients than in {}", first.file));
    const auto sizes = [](const TraceSteps& rank) {
      std::vector<int64_t> elements;
      for (const StepReduce& reduce : rank.steps.front().reduces) elements.push_back(reduce.elements);
      return elements;
    };
    if (sizes(other) != sizes(first)) fail(fmt::format("other buckets than in {}", first.file));
    constexpr double kClocksDiffer_us = 60 * kSecond_us;
    const bool is_apart = other.begin_us > first.end_us + kClocksDiffer_us || first.begin_us > other.end_us + kClocksDiffer_us;
    if (other.has_date && first.has_date && is_apart) fail(fmt::format("recorded at another time than {}", first.file));
  }
}

// The seconds of a step in which at least one all-reduce was under way.
double communication_s(const TraceStep& step) {
  double busy_s = 0, until_s = -1e18;
  std::vector<StepReduce> reduces = step.reduces;
  std::ranges::sort(reduces, {}, &StepReduce::start_s);
  for (const StepReduce& reduce : reduces) {
    busy_s += std::max(0.0, reduce.end_s - std::max(reduce.start_s, until_s));
    until_s = std::max(until_s, reduce.end_s);
  }
  return busy_s;
}

double exposed_s(const TraceStep& step) {
  const double last_s = std::ranges::max(step.reduces | std::views::transform(&StepReduce::end_s));
  return std::max(0.0, last_s - step.backward_s());
}

// Seconds that a rank waited in an all-reduce for the last rank to join it (Note [The last rank to join]). The traces must
// show the same steps.
double waiting_s(const std::vector<TraceSteps>& ranks, const TraceSteps& rank, size_t step, size_t bucket) {
  double least_s = rank.steps[step].reduces[bucket].seconds();
  const double own_s = least_s;
  for (const TraceSteps& other : ranks) least_s = std::min(least_s, other.steps[step].reduces[bucket].seconds());
  return own_s - least_s;
}

bool show_the_same_steps(const std::vector<TraceSteps>& ranks) {
  return ranks.size() > 1 && std::ranges::all_of(ranks, [&](const TraceSteps& rank) { return rank.steps.size() == ranks[0].steps.size(); });
}

// The periods of one step, without gaps that a page could not show.
void add_periods(std::vector<TracedPeriod>& periods, std::vector<TraceSpan> spans, bool communicate, double begin_us, double end_us) {
  constexpr double kLeastGap = 1. / 400;
  const double least_gap_s = kLeastGap * (end_us - begin_us) / kSecond_us;
  std::ranges::sort(spans, {}, &TraceSpan::start_us);
  bool is_open = false;
  for (const TraceSpan& span : spans) {
    if (span.end_us <= begin_us || span.start_us >= end_us) continue;
    const double start_s = (std::max(span.start_us, begin_us) - begin_us) / kSecond_us;
    const double end_s = (std::min(span.end_us, end_us) - begin_us) / kSecond_us;
    if (is_open && start_s - periods.back().end_s <= least_gap_s) {
      periods.back().end_s = std::max(periods.back().end_s, end_s);
    } else {
      periods.push_back({communicate, start_s, end_s});
      is_open = true;
    }
  }
}

std::vector<TracedPeriod> timeline_of(const TraceSteps& rank) {
  const auto step = std::ranges::find_if(rank.steps | std::views::reverse, [](const TraceStep& one) { return one.step_s.has_value(); });
  if (step == rank.steps.rend()) return {};
  const double end_us = step->begin_us + *step->step_s * kSecond_us;
  std::vector<TracedPeriod> periods;
  add_periods(periods, rank.computing, false, step->begin_us, end_us);
  std::vector<TraceSpan> reduces;
  for (const StepReduce& reduce : step->reduces) {
    reduces.push_back({step->backward_us + reduce.start_s * kSecond_us, step->backward_us + reduce.end_s * kSecond_us});
  }
  add_periods(periods, reduces, true, step->begin_us, end_us);
  return periods;
}

TracedRank figures_of(const std::vector<TraceSteps>& ranks, const TraceSteps& rank) {
  TracedRank figures{.file = rank.file, .rank = rank.rank >= 0 ? rank.rank : &rank - ranks.data()};
  std::vector<double> lengths;
  for (const TraceStep& step : rank.steps) {
    if (step.step_s) lengths.push_back(*step.step_s);
  }
  figures.step_s = lengths.empty() ? 0 : median(lengths);
  figures.backward_s = median_of_steps(rank.steps, [](const TraceStep& step) { return step.backward_s(); });
  figures.exposed_s = median_of_steps(rank.steps, exposed_s);
  figures.communication_s = median_of_steps(rank.steps, communication_s);
  if (show_the_same_steps(ranks)) {
    std::vector<double> waits;
    for (size_t i = 0; i < rank.steps.size(); ++i) {
      double wait_s = 0;
      for (size_t k = 0; k < rank.steps[i].reduces.size(); ++k) wait_s += waiting_s(ranks, rank, i, k);
      waits.push_back(wait_s);
    }
    figures.waiting_s = median(waits);
  }
  figures.timeline = timeline_of(rank);
  return figures;
}

std::vector<TracedBucket> buckets_of(const std::vector<TraceSteps>& ranks, const std::optional<BucketPlan>& plan) {
  const TraceSteps& rank = ranks.front();
  std::vector<TracedBucket> buckets;
  for (size_t k = 0; k < rank.steps.front().reduces.size(); ++k) {
    TracedBucket& bucket = buckets.emplace_back();
    bucket.bytes = rank.steps.front().reduces[k].elements * rank.element_bytes;
    bucket.start_s = median_of_steps(rank.steps, [k](const TraceStep& step) { return step.reduces[k].start_s; });
    bucket.end_s = median_of_steps(rank.steps, [k](const TraceStep& step) { return step.reduces[k].end_s; });
    if (plan) {
      const Bucket& place = plan->buckets[k];
      bucket.tensors = place.count;
      const auto last = static_cast<size_t>(place.first + place.count - 1);
      bucket.ready_s = median_of_steps(rank.steps, [last](const TraceStep& step) { return step.gradients[last].ready_s; });
    }
    if (!show_the_same_steps(ranks)) continue;
    std::vector<double> waits;
    for (size_t i = 0; i < rank.steps.size(); ++i) waits.push_back(waiting_s(ranks, rank, i, k));
    bucket.waiting_s = median(waits);
  }
  return buckets;
}

TensorProfile profile_of(const std::vector<TraceSteps>& ranks) {
  const TraceSteps& first = ranks.front();
  TensorProfile profile{.names = first.names, .bytes = {}, .ready_s = {}};
  double latest_s = 0;
  for (size_t i = 0; i < first.names.size(); ++i) {
    for (const TraceSteps& rank : ranks) {
      latest_s = std::max(latest_s, median_of_steps(rank.steps, [i](const TraceStep& step) { return step.gradients[i].ready_s; }));
    }
    profile.bytes.push_back(first.elements[i] * first.element_bytes);
    profile.ready_s.push_back(latest_s);
  }
  profile.backward_s = latest_s;
  return profile;
}

// The times of single all-reduces by size. Throws nothing: `why_not` says why there are none.
AllReduceTable table_of(const std::vector<TraceSteps>& ranks, std::string& why_not) {
  const TraceSteps& first = ranks.front();
  if (first.world_size != std::ssize(ranks)) {
    why_not = fmt::format("one rank's all-reduce lasts as long as it waits for the others; all {} ranks' traces together can show it",
                          first.world_size == 0 ? "" : fmt::format("{}", first.world_size));
    return {};
  }
  if (!show_the_same_steps(ranks)) {
    why_not = "the ranks' traces do not hold the same number of steps";
    return {};
  }
  std::map<int64_t, std::vector<double>> times;  // by bytes
  for (size_t i = 0; i < first.steps.size(); ++i) {
    for (size_t k = 0; k < first.steps[i].reduces.size(); ++k) {
      const auto is_alone = [&](const TraceSteps& rank) { return rank.steps[i].reduces[k].is_alone; };
      if (!std::ranges::all_of(ranks, is_alone)) continue;
      const auto seconds = [&](const TraceSteps& rank) { return rank.steps[i].reduces[k].seconds(); };
      const double least_s = std::ranges::min(ranks | std::views::transform(seconds));
      if (!expected_of_measured(least_s)) times[first.steps[i].reduces[k].elements * first.element_bytes].push_back(least_s);
    }
  }
  AllReduceTable table;
  for (const auto& [bytes, seconds] : times) {
    if (bytes > 0 && seconds.size() > 1) table.push_back(row_of_samples(bytes, first.world_size, seconds, {}));
  }
  // Two sizes, or sizes closer to each other, do not tell latency from bandwidth.
  constexpr size_t kLeastSizes = 3;
  constexpr int64_t kFarApart = 4;
  constexpr double kMostScatter = 0.1;
  const auto scatters = [](const AllReduceRow& row) { return row.stdev_s.value_or(0) > kMostScatter * row.median_s; };
  if (table.empty()) {
    why_not = "none of them runs alone, and two at once share the link";
  } else if (table.size() < kLeastSizes || table.back().bytes < kFarApart * table.front().bytes) {
    why_not = "those that run alone have too few or too similar sizes to tell latency from bandwidth";
  } else if (std::ranges::any_of(table, scatters)) {
    why_not = "times of one size differ by more than 10 %";
  } else if (!std::ranges::is_sorted(table, {}, &AllReduceRow::median_s)) {
    why_not = "larger ones took less time than smaller ones";
  }
  if (!why_not.empty()) table.clear();
  return table;
}

}  // namespace

ReadTrace combine_traces(std::vector<TraceSteps> ranks) {
  std::ranges::stable_sort(ranks, {}, &TraceSteps::rank);
  check_one_run(ranks);
  const TraceSteps& first = ranks.front();
  ReadTrace read{.profile = profile_of(ranks), .table = {}, .why_no_table = {}, .run = {}};
  TracedRun& run = read.run;
  run.backend = first.backend;
  if (first.world_size > 0) run.world_size = first.world_size;
  run.steps = std::ssize(first.steps);
  run.tensors = std::ssize(first.names);
  run.gradient_bytes = read.profile.total_bytes();
  for (const TraceSteps& rank : ranks) run.ranks.push_back(figures_of(ranks, rank));
  const std::optional<BucketPlan> plan = plan_of_reduces(first);
  run.buckets = buckets_of(ranks, plan);
  for (const auto& [place, calls] : first.others) run.others.push_back({place.first, place.second, calls});
  run.least_communication_s = communication_s(first.steps.front());
  for (const TraceSteps& rank : ranks) {
    for (const TraceStep& step : rank.steps) run.least_communication_s = std::min(run.least_communication_s, communication_s(step));
  }
  std::string why_not;
  read.table = table_of(ranks, why_not);
  if (!why_not.empty()) read.why_no_table = fmt::format("The times of single all-reduces are not known from this: {}.", why_not);
  set_cap(first, plan, run);
  add_findings(first, run);
  return read;
}

ReadTrace read_traces(const std::vector<std::filesystem::path>& files, const std::optional<GradientSizes>& sizes) {
  if (files.empty()) throw InputError("no trace to read; expected that of one rank or more");
  std::vector<TraceSteps> ranks;
  for (const std::filesystem::path& file : files) {
    for (TraceEvents& rank : read_trace_events(file)) ranks.push_back(find_trace_steps(std::move(rank), sizes));
  }
  return combine_traces(std::move(ranks));
}

std::string doubt_of_rate(const TracedRun& run, const CommCosts& costs) {
  constexpr double kTwice = 2;
  double expected_s = 0;
  for (const TracedBucket& bucket : run.buckets) expected_s += costs.isolated(static_cast<double>(bucket.bytes));
  if (run.least_communication_s < kTwice * expected_s) return "";
  return fmt::format(
      "The all-reduce table is {:.1f} times as fast as what the run saw: its all-reduces took {} in the best step, by the table {}. Were "
      "both measured on the same ranks and link?",
      run.least_communication_s / expected_s, format_seconds(run.least_communication_s), format_seconds(expected_s));
}

}  // namespace firkin
