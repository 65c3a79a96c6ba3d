#include "firkin/plan/watched_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankStep, step, phases_us, exposed_us, gradients_us, sent_us)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankSteps, host, threads, cpus, phases, broadcasts_in_forward, bucket_bytes, last_bytes, steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WatchSummary, ranks, steps, first_step, last_step, step_s, phases, phases_s, exposed_s, waiting_s,
                                   waited_s, last_rank, last_share, last_by_s, last_in, gain_at_most_s, bytes_per_s, bucket_bytes,
                                   launched_s, causes, notes)

namespace {

constexpr double kNoticeable = 0.05;    // the share of a step that makes something a cause
constexpr double kWorthTuning = 0.02;   // the gain, as a share of a step, that is worth a tuning
constexpr double kOftenLast = 2.0 / 3;  // a rank that is last in this share of steps is slow
constexpr double kFastShare = 0.9;      // the quantile of the link's rate that bounds the possible gain
constexpr double kMicrosecond = 1e-6;

using StepOfRanks = std::vector<const RankStep*>;  // by rank

// One step of all ranks, as the last of them saw it, in microseconds.
struct LastOfStep {
  size_t rank = 0;
  std::vector<double> times;      // the phases, exposed, the whole step, and from the first gradient to the last
  std::vector<double> waited_us;  // per rank
  std::vector<double> excess_us;  // per phase, then of all work: by how much it exceeds the median of the others
  // Per bucket, after the last gradient: its launch on the last rank; empty if unknown.
  std::vector<double> launched_us;
  double bytes_per_us = 0;  // the least rate that the link must have
};

// The ranks' work. A rank that is late before forward makes the others wait for its buffers in forward; that is left
// out.
std::vector<double> work_of(const StepOfRanks& rows, bool broadcasts_in_forward) {
  int64_t latest = 0, least = INT64_MAX;
  for (const RankStep* row : rows) {
    latest = std::max(latest, row->phases_us[0]);
    least = std::min(least, row->phases_us[broadcasts_in_forward ? 1 : 0]);
  }
  std::vector<double> work_us;
  for (const RankStep* row : rows) {
    int64_t work = std::reduce(row->phases_us.begin(), row->phases_us.end());
    if (broadcasts_in_forward) work -= std::min(row->phases_us[1] - least, latest - row->phases_us[0]);
    work_us.push_back(static_cast<double>(work));
  }
  return work_us;
}

// By how much one value exceeds the median of the others; 0 if it is the only one.
double excess_of(std::vector<double> values, size_t one) {
  const double value = values[one];
  if (values.size() > 1) values.erase(values.begin() + static_cast<std::ptrdiff_t>(one));
  return value - median(values);
}

LastOfStep last_of(const StepOfRanks& rows, const RankSteps& facts) {
  const std::vector<double> work_us = work_of(rows, facts.broadcasts_in_forward);
  LastOfStep last;
  last.rank = static_cast<size_t>(std::ranges::max_element(work_us) - work_us.begin());
  const RankStep& row = *rows[last.rank];
  last.times = {row.phases_us.begin(), row.phases_us.end()};
  const double all_work = std::reduce(last.times.begin(), last.times.end());
  const auto exposed = static_cast<double>(row.exposed_us);
  last.times.insert(last.times.end(), {exposed, all_work + exposed, static_cast<double>(row.gradients_us) - exposed});
  for (const double each : work_us) last.waited_us.push_back(work_us[last.rank] - each);
  for (size_t phase = 0; phase < facts.phases.size(); ++phase) {
    std::vector<double> times;
    for (const RankStep* each : rows) times.push_back(static_cast<double>(each->phases_us[phase]));
    last.excess_us.push_back(excess_of(std::move(times), last.rank));
  }
  last.excess_us.push_back(excess_of(work_us, last.rank));
  double left_bytes = 0;
  for (size_t bucket = facts.bucket_bytes.size(); bucket-- > 0;) {
    int64_t sent = INT64_MAX;  // a bucket travels once its last rank has launched it; times are before the common end
    for (const RankStep* each : rows) sent = std::min(sent, bucket < each->sent_us.size() ? each->sent_us[bucket] : 0);
    if (sent <= 0) return last;
    left_bytes += static_cast<double>(facts.bucket_bytes[bucket]);
    last.bytes_per_us = std::max(last.bytes_per_us, left_bytes / static_cast<double>(sent));
    last.launched_us.insert(last.launched_us.begin(), exposed - static_cast<double>(sent));
  }
  return last;
}

// Notes hosts whose ranks have more threads than cores.
void note_shared_cores(const std::vector<RankSteps>& ranks, std::vector<std::string>& notes) {
  std::map<std::string, std::set<int64_t>> cores;
  std::map<std::string, std::pair<int64_t, int64_t>> users;  // the number of ranks, and of their threads
  for (const RankSteps& rank : ranks) {
    cores[rank.host].insert(rank.cpus.begin(), rank.cpus.end());
    ++users[rank.host].first;
    users[rank.host].second += rank.threads;
  }
  for (const auto& [host, count] : users) {
    const size_t there = cores[host].size();
    if (count.second <= std::ssize(cores[host]) || there == 0) continue;
    notes.push_back(fmt::format("{} ranks with {} threads share {} core{} on {}, and then wait for each other without another cause",
                                count.first, count.second, there, there == 1 ? "" : "s", host));
  }
}

// The steps that all ranks have.
std::vector<StepOfRanks> common_steps(const std::vector<RankSteps>& ranks) {
  std::map<int64_t, StepOfRanks> by_step;
  for (const RankSteps& rank : ranks) {
    if (rank.phases != ranks[0].phases) throw std::invalid_argument("ranks that watched different phases");
    for (const RankStep& step : rank.steps) by_step[step.step].push_back(&step);
  }
  std::vector<StepOfRanks> steps;
  for (auto& [number, rows] : by_step) {
    if (rows.size() == ranks.size()) steps.push_back(std::move(rows));
  }
  return steps;
}

std::vector<double> seconds_of(std::vector<double> us) {
  for (double& each : us) each *= kMicrosecond;
  return us;
}

// A lower bound of exposed communication, whatever the buckets: with no latency, with a link that is busy from the
// first gradient on, and with the last gradient's tensor sent after it is ready.
double least_exposed_us(const RankSteps& facts, double window_us, double bytes_per_us) {
  const auto all = static_cast<double>(std::reduce(facts.bucket_bytes.begin(), facts.bucket_bytes.end()));
  return std::max(static_cast<double>(facts.last_bytes) / bytes_per_us, all / bytes_per_us - window_us);
}

}  // namespace

WatchSummary summarize(const std::vector<RankSteps>& ranks) {
  if (ranks.empty()) throw std::invalid_argument("steps of no rank");
  const RankSteps& facts = ranks[0];
  const std::vector<StepOfRanks> steps = common_steps(ranks);
  WatchSummary summary;
  summary.ranks = std::ssize(ranks);
  summary.steps = std::ssize(steps);
  summary.phases = facts.phases;
  summary.bucket_bytes = facts.bucket_bytes;
  note_shared_cores(ranks, summary.notes);
  if (steps.empty()) return summary;
  summary.first_step = steps.front()[0]->step;
  summary.last_step = steps.back()[0]->step;

  std::vector<std::vector<double>> times, waited, launched;
  std::vector<std::vector<std::vector<double>>> excess(ranks.size());  // by the rank that was last
  std::vector<double> rates;
  for (const StepOfRanks& rows : steps) {
    LastOfStep last = last_of(rows, facts);
    times.push_back(std::move(last.times));
    waited.push_back(std::move(last.waited_us));
    excess[last.rank].push_back(std::move(last.excess_us));
    rates.push_back(last.bytes_per_us);
    if (last.launched_us.size() == facts.bucket_bytes.size()) launched.push_back(std::move(last.launched_us));
  }
  summary.phases_s = seconds_of(column_medians(times));
  const double window_us = summary.phases_s.back() / kMicrosecond;
  summary.step_s = *(summary.phases_s.end() - 2);
  summary.exposed_s = *(summary.phases_s.end() - 3);
  summary.phases_s.resize(facts.phases.size());

  summary.waited_s.assign(ranks.size(), 0);
  for (const std::vector<double>& step : waited) {
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      summary.waited_s[rank] += step[rank] * kMicrosecond / static_cast<double>(steps.size());
  }
  summary.waiting_s = mean(summary.waited_s);
  const auto most = std::ranges::max_element(excess, {}, [](const auto& of_rank) { return of_rank.size(); });
  summary.last_rank = most - excess.begin();
  summary.last_share = static_cast<double>(most->size()) / static_cast<double>(steps.size());
  std::vector<double> lead_s = seconds_of(column_medians(*most));
  summary.last_by_s = lead_s.back();
  lead_s.pop_back();
  summary.last_in = facts.phases[static_cast<size_t>(std::ranges::max_element(lead_s) - lead_s.begin())];

  summary.gain_at_most_s = summary.exposed_s;
  if (const double fast = quantile(rates, kFastShare); fast > 0 && !launched.empty()) {
    const double least_s = least_exposed_us(facts, window_us, fast) * kMicrosecond;
    summary.gain_at_most_s = std::clamp(summary.exposed_s - least_s, 0.0, summary.exposed_s);
    summary.bytes_per_s = median(rates) / kMicrosecond;
    summary.launched_s = seconds_of(column_medians(launched));
  }
  const bool is_slow = ranks.size() > 1 && summary.last_by_s >= kNoticeable * summary.step_s && summary.last_share >= kOftenLast;
  if (summary.exposed_s >= kNoticeable * summary.step_s) summary.causes.emplace_back(kCommunicationCause);
  if (is_slow) summary.causes.insert(summary.last_by_s > summary.exposed_s ? summary.causes.begin() : summary.causes.end(), kSlowRankCause);
  return summary;
}

std::string describe(const WatchSummary& summary) {
  if (summary.steps == 0) return fmt::format("no steps yet that all {} ranks have seen\n", summary.ranks);
  const auto line = [&summary](const char* what, double seconds) {
    return fmt::format("  {:24}{:>9}, {:>6}", what, format_seconds(seconds), fmt::format("{:.1f} %", 100 * seconds / summary.step_s));
  };
  std::string text = fmt::format("steps {} to {}, {} ranks: {} a step\n", summary.first_step, summary.last_step, summary.ranks,
                                 format_seconds(summary.step_s));
  text += line("communication not hidden", summary.exposed_s) + "\n" + line("waiting for others", summary.waiting_s);
  if (summary.waiting_s >= kWorthTuning * summary.step_s) {
    text += fmt::format("   rank {} is last in {:.0f} % of the steps, by {}, most of it in \"{}\"", summary.last_rank,
                        100 * summary.last_share, format_seconds(summary.last_by_s), summary.last_in);
  }
  text += fmt::format("\n  a better bucket size could gain at most {}, {:.1f} %: {}worth a firkin.tune\n",
                      format_seconds(summary.gain_at_most_s), 100 * summary.gain_at_most_s / summary.step_s,
                      summary.gain_at_most_s < kWorthTuning * summary.step_s ? "not " : "");
  for (const std::string& note : summary.notes) text += fmt::format("  note: {}\n", note);
  return text;
}

std::string rank_steps_text(const RankSteps& steps) {
  return dump_json(steps);
}

RankSteps parse_rank_steps(const std::string& text) {
  try {
    // Firkin wrote the text, so it needs no checks of parse_json()
    return nlohmann::json::parse(text).get<RankSteps>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("watched steps: {}; expected the text of rank_steps_text()", error.what()));
  }
}

std::string summary_text(const WatchSummary& summary) {
  nlohmann::json json = summary;
  json["lines"] = describe(summary);
  return dump_json(json);
}

}  // namespace firkin
