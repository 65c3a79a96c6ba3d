#include "firkin/plan/watched_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/stats/estimates.h"

namespace firkin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankStep, step, phases_s, exposed_s, gradients_s, sent_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankSteps, host, threads, cpus, phases, broadcasts_in_forward, bucket_bytes, last_bytes,
                                                keeps_first_buckets, averaged, updated, settings, steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WatchSummary, ranks, steps, first_step, last_step, step_s, phases, phases_s, exposed_s, step_error_s,
                                   waiting_s, waited_s, last_rank, last_share, last_by_s, last_in, gain_at_most_s, bytes_per_s,
                                   bucket_bytes, causes, reasons, next, notes)

namespace {

constexpr double kNoticeable = 0.05;    // the share of a step that makes something a cause
constexpr double kOftenLast = 2.0 / 3;  // a rank that is last in this share of steps is slow
constexpr double kLateShare = 0.05;     // buckets that are all sent within this last share of the time of gradients are sent late
constexpr double kFastShare = 0.9;      // the quantile of the link's rate that bounds the possible gain
constexpr double kLargeBucket = kMiB;   // from this mean size on, latency is taken to be little of what buckets take

using StepOfRanks = std::vector<const RankStep*>;  // by rank

std::vector<double> phase_of(const StepOfRanks& rows, size_t phase) {
  std::vector<double> times_s;
  for (const RankStep* row : rows) times_s.push_back(row->phases_s[phase]);
  return times_s;
}

// The ranks' work. Leaves out waiting in forward for the buffers of a rank that is late before it.
std::vector<double> work_of(const StepOfRanks& rows, bool broadcasts_in_forward) {
  std::vector<double> work_s;
  for (const RankStep* row : rows) work_s.push_back(std::reduce(row->phases_s.begin(), row->phases_s.end()));
  if (!broadcasts_in_forward) return work_s;
  const std::vector<double> before_s = phase_of(rows, 0), forward_s = phase_of(rows, 1);
  const double latest_s = std::ranges::max(before_s), least_s = std::ranges::min(forward_s);
  for (size_t rank = 0; rank < rows.size(); ++rank) work_s[rank] -= std::min(forward_s[rank] - least_s, latest_s - before_s[rank]);
  return work_s;
}

// By how much one value exceeds the median of the others; 0 if it is the only one.
double excess_of(std::vector<double> values, size_t one) {
  const double value = values[one];
  if (values.size() > 1) values.erase(values.begin() + static_cast<std::ptrdiff_t>(one));
  return value - median(values);
}

// A lower bound of the link's rate in bytes per second; 0 if unknown. A bucket travels once the last rank has launched
// it, and all have travelled when the step ends.
double least_rate(const StepOfRanks& rows, const std::vector<int64_t>& bucket_bytes) {
  double remaining_bytes = 0, bytes_per_s = 0;  // remaining: from this bucket to the last
  for (size_t bucket = bucket_bytes.size(); bucket-- > 0;) {
    double sent_s = std::numeric_limits<double>::infinity();
    for (const RankStep* row : rows) sent_s = std::min(sent_s, row->sent_s[bucket]);
    remaining_bytes += static_cast<double>(bucket_bytes[bucket]);
    if (sent_s > 0) bytes_per_s = std::max(bytes_per_s, remaining_bytes / sent_s);
  }
  return bytes_per_s;
}

std::string rate_in_words(double bytes_per_s) {
  const double megabytes = 1e-6 * bytes_per_s;
  return megabytes < 100 ? fmt::format("{:.3g} MB/s", megabytes) : fmt::format("{:.0f} MB/s", megabytes);
}

// Appends a note for every host whose ranks have more threads than cores.
void append_shared_cores_notes(const std::vector<RankSteps>& ranks, std::vector<std::string>& notes) {
  struct Host {
    std::set<int64_t> cores;
    int64_t ranks = 0, threads = 0;
  };
  std::map<std::string, Host> hosts;
  for (const RankSteps& rank : ranks) {
    Host& host = hosts[rank.host];
    host.cores.insert(rank.cpus.begin(), rank.cpus.end());
    host.ranks += 1;
    host.threads += rank.threads;
  }
  for (const auto& [name, host] : hosts) {
    const int64_t cores = std::ssize(host.cores);
    if (cores == 0 || host.threads <= cores) continue;
    if (host.ranks == 1) {
      notes.push_back(fmt::format("1 rank has {} for {} on {}, and is then slow without another cause", counted(host.threads, "thread"),
                                  counted(cores, "core"), name));
    } else {
      notes.push_back(fmt::format("{} with {} share {} on {}, and then wait for each other without another cause",
                                  counted(host.ranks, "rank"), counted(host.threads, "thread"), counted(cores, "core"), name));
    }
  }
}

// Whether all buckets were sent with the last gradient, or after it. The last bucket always is.
bool sends_late(const RankStep& row) {
  if (row.sent_s.empty()) return false;
  const auto [last_s, first_s] = std::ranges::minmax(row.sent_s);
  return first_s <= row.exposed_s || first_s - last_s <= kLateShare * (row.gradients_s - row.exposed_s);
}

// Why communication is not hidden. is_late: whether all buckets are sent after the last gradient.
std::vector<std::string> reasons_of(const RankSteps& facts, bool is_late) {
  std::vector<std::string> reasons;
  const int64_t buckets = std::ssize(facts.bucket_bytes);
  if (is_late) {
    reasons.push_back(buckets == 1 ? fmt::format("all gradients are in one bucket of {}, sent after the last of them",
                                                 format_bytes(facts.bucket_bytes[0]))
                                   : fmt::format("all {} buckets are sent after the last gradient", buckets));
    if (facts.keeps_first_buckets && buckets > 1) {
      reasons.back() += "; with find_unused_parameters=True PyTorch does not rebuild its buckets in the order of gradients";
    }
  }
  // More than half unchanged, so that a gradient scaler that skips a step now and then is no reason.
  if (facts.updated > 0 && 2 * facts.updated <= facts.averaged) {
    reasons.push_back(
        fmt::format("parameters changed after {} of {} passes, and gradients were averaged in all: no_sync() around forward and "
                    "backward of the others saves that",
                    facts.updated, facts.averaged));
  }
  for (const OverlapSetting& setting : kOverlapSettings) {
    if (std::ranges::find(facts.settings, setting.text) != facts.settings.end()) {
      reasons.push_back(fmt::format("{} is set, which {}", setting.text, setting.why));
    }
  }
  return reasons;
}

// Why no other bucket size is worth a tuning; none if one may be.
std::optional<std::string> against_tuning(const WatchSummary& summary) {
  if (summary.gain_at_most_s < kWorthTuning * summary.step_s) return "";
  // The bound knows no latency, which is most of what so small a bucket takes.
  if (summary.bucket_bytes.size() == 1 && summary.bucket_bytes[0] <= *kTorchDefaultCaps.first_cap_bytes)
    return fmt::format(", since PyTorch's default has all {} in one bucket too", format_bytes(summary.bucket_bytes[0]));
  if (summary.gain_at_most_s < summary.step_error_s)
    return fmt::format(", since it is less than the error of the median step, {}", format_seconds(summary.step_error_s));
  return std::nullopt;
}

// What a rank that is last takes of a step: its usual lead, or the mean waiting if a few steps have a much longer one.
double slow_rank_s(const WatchSummary& summary) {
  return std::max(summary.last_by_s, summary.waiting_s);
}

std::vector<std::string> next_of(const WatchSummary& summary, const std::vector<RankSteps>& ranks) {
  struct Advice {
    double about_s;  // what it is about takes so much of a step
    std::string text;
  };
  std::vector<Advice> advice;
  const auto has = [&summary](const char* cause) { return std::ranges::find(summary.causes, cause) != summary.causes.end(); };
  if (!against_tuning(summary)) advice.emplace_back(summary.exposed_s, "firkin.tune(net, step) tries other bucket sizes");
  if (has(kSlowRankCause)) {
    advice.emplace_back(slow_rank_s(summary), fmt::format("see what rank {} on {} does in \"{}\"", summary.last_rank,
                                                          ranks[static_cast<size_t>(summary.last_rank)].host, summary.last_in));
  }
  std::set<std::string> hosts;
  for (const RankSteps& rank : ranks) hosts.insert(rank.host);
  if (has(kCommunicationCause) && hosts.size() > 2)
    advice.emplace_back(summary.exposed_s, "firkin bench pairs tells whether one host's link is slow");
  std::ranges::stable_sort(advice, std::greater(), &Advice::about_s);
  std::vector<std::string> next;
  for (Advice& each : advice) next.push_back(std::move(each.text));
  return next;
}

// Adds the causes of what the summary shows, the longest first, with reasons and what to do next. late: how many steps
// sent all buckets late (sends_late()).
void add_causes(const std::vector<RankSteps>& ranks, int64_t late, WatchSummary& summary) {
  const bool is_slow = ranks.size() > 1 && summary.last_by_s >= kNoticeable * summary.step_s && summary.last_share >= kOftenLast;
  const bool communicates = summary.exposed_s >= kNoticeable * summary.step_s;
  if (communicates) summary.causes.emplace_back(kCommunicationCause);
  const bool is_larger = slow_rank_s(summary) > summary.exposed_s;
  if (is_slow) summary.causes.insert(is_larger ? summary.causes.begin() : summary.causes.end(), kSlowRankCause);
  if (communicates) summary.reasons = reasons_of(ranks[0], 2 * late > summary.steps);
  summary.next = next_of(summary, ranks);
}

// The least exposed communication of any buckets, at this rate: a link busy from the first gradient on, and the last
// gradient's tensor sent after it is ready. window_s: from the first gradient to the last. The rate contains the latency
// of the buckets that were sent. Larger ones than many small ones may travel faster by any factor, so then it is 0.
double least_exposed_s(const RankSteps& facts, double bytes_per_s, double window_s) {
  const auto all = static_cast<double>(std::reduce(facts.bucket_bytes.begin(), facts.bucket_bytes.end()));
  const bool are_small = facts.bucket_bytes.size() > 1 && all < kLargeBucket * static_cast<double>(facts.bucket_bytes.size());
  if (are_small || !(bytes_per_s > 0)) return 0;
  return std::max({0.0, static_cast<double>(facts.last_bytes) / bytes_per_s, all / bytes_per_s - window_s});
}

// The steps that all ranks have, with the same buckets.
std::map<int64_t, StepOfRanks> common_steps(const std::vector<RankSteps>& ranks) {
  std::map<int64_t, StepOfRanks> steps;
  for (const RankSteps& rank : ranks) {
    if (rank.phases != ranks[0].phases) throw std::invalid_argument("ranks that watched different phases");
    for (const RankStep& step : rank.steps) {
      if (step.sent_s.size() == ranks[0].bucket_bytes.size()) steps[step.step].push_back(&step);
    }
  }
  std::erase_if(steps, [&ranks](const auto& step) { return step.second.size() < ranks.size(); });
  return steps;
}

}  // namespace

WatchSummary summarize(const std::vector<RankSteps>& ranks) {
  if (ranks.empty()) throw std::invalid_argument("steps of no rank");
  const RankSteps& facts = ranks[0];
  const std::map<int64_t, StepOfRanks> steps = common_steps(ranks);
  WatchSummary summary;
  summary.ranks = std::ssize(ranks);
  summary.steps = std::ssize(steps);
  summary.phases = facts.phases;
  summary.bucket_bytes = facts.bucket_bytes;
  append_shared_cores_notes(ranks, summary.notes);
  if (steps.empty()) return summary;
  summary.first_step = steps.begin()->first;
  summary.last_step = steps.rbegin()->first;

  std::vector<std::vector<double>> times_s;                              // of the last rank: phases, exposed, step, window of gradients
  std::vector<std::vector<std::vector<double>>> excess_s(ranks.size());  // by the rank that was last: per phase, then of all work
  std::vector<double> rates, step_times_s;
  int64_t late = 0;  // steps
  summary.waited_s.assign(ranks.size(), 0);
  for (const auto& [number, rows] : steps) {
    const std::vector<double> work_s = work_of(rows, facts.broadcasts_in_forward);
    const auto last = static_cast<size_t>(std::ranges::max_element(work_s) - work_s.begin());
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      summary.waited_s[rank] += (work_s[last] - work_s[rank]) / static_cast<double>(steps.size());
    const RankStep& row = *rows[last];
    std::vector<double>& times = times_s.emplace_back(row.phases_s);
    const double step_s = std::reduce(times.begin(), times.end(), row.exposed_s);
    step_times_s.push_back(step_s);
    times.insert(times.end(), {row.exposed_s, step_s, row.gradients_s - row.exposed_s});
    std::vector<double>& excess = excess_s[last].emplace_back();
    for (size_t phase = 0; phase < facts.phases.size(); ++phase) excess.push_back(excess_of(phase_of(rows, phase), last));
    excess.push_back(excess_of(work_s, last));
    rates.push_back(least_rate(rows, facts.bucket_bytes));
    late += sends_late(row) ? 1 : 0;
  }
  summary.waiting_s = mean(summary.waited_s);
  const std::vector<double> medians_s = column_medians(times_s);
  const auto end_of_phases = medians_s.begin() + std::ssize(facts.phases);
  summary.phases_s.assign(medians_s.begin(), end_of_phases);
  summary.exposed_s = end_of_phases[0];
  summary.step_s = end_of_phases[1];
  summary.step_error_s = kNormal95 * series_error(step_times_s).value_or(0);
  const double window_s = end_of_phases[2];

  const auto most = std::ranges::max_element(excess_s, {}, [](const auto& of_rank) { return of_rank.size(); });
  summary.last_rank = most - excess_s.begin();
  summary.last_share = static_cast<double>(most->size()) / static_cast<double>(steps.size());
  const std::vector<double> lead_s = column_medians(*most);
  summary.last_by_s = lead_s.back();
  summary.last_in = facts.phases[static_cast<size_t>(std::max_element(lead_s.begin(), lead_s.end() - 1) - lead_s.begin())];

  summary.bytes_per_s = median(rates);
  summary.gain_at_most_s = std::max(0.0, summary.exposed_s - least_exposed_s(facts, quantile(rates, kFastShare), window_s));
  add_causes(ranks, late, summary);
  return summary;
}

std::string describe(const WatchSummary& summary) {
  if (summary.steps == 0 && summary.ranks == 1) return "no steps yet\n";
  if (summary.steps == 0) return fmt::format("no steps yet that all {} ranks have seen\n", summary.ranks);
  const auto line = [&summary](const char* what, double seconds) {
    return fmt::format("  {:24}{:>9}, {:>6}", what, format_seconds(seconds), fmt::format("{:.1f} %", 100 * seconds / summary.step_s));
  };
  const bool has_all = summary.steps == summary.last_step - summary.first_step + 1;
  std::string text = fmt::format("{}steps {} to {}, {}: {} a step\n", has_all ? "" : fmt::format("{} of the ", summary.steps),
                                 summary.first_step, summary.last_step, counted(summary.ranks, "rank"), format_seconds(summary.step_s));
  text += line("communication not hidden", summary.exposed_s);
  if (summary.bytes_per_s > 0) text += fmt::format("   all-reduces at {} or more", rate_in_words(summary.bytes_per_s));
  text += fmt::format("\n{}", line("waiting for others", summary.waiting_s));
  if (summary.waiting_s >= kWorthTuning * summary.step_s) {
    text += fmt::format("   on average; rank {} is last in {:.0f} % of the steps, by {} in the median, most of it in \"{}\"",
                        summary.last_rank, 100 * summary.last_share, format_seconds(summary.last_by_s), summary.last_in);
  }
  const std::optional<std::string> against = against_tuning(summary);
  text += fmt::format("\n  a better bucket size could gain at most {}, {:.1f} %: {}worth a firkin.tune{}\n",
                      format_seconds(summary.gain_at_most_s), 100 * summary.gain_at_most_s / summary.step_s, against ? "not " : "",
                      against.value_or(""));
  for (const std::string& reason : summary.reasons) text += fmt::format("  why: {}\n", reason);
  for (const std::string& step : summary.next) text += fmt::format("  next: {}\n", step);
  for (const std::string& note : summary.notes) text += fmt::format("  note: {}\n", note);
  return text;
}

std::string rank_steps_text(const RankSteps& steps) {
  return dump_json(steps);
}

RankSteps parse_rank_steps(const std::string& text) {
  try {
    // Firkin wrote the text, so it needs none of parse_json()'s checks.
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
