// Results in words, and for a terminal; the answers of `firkin tune` and `firkin predict` are in recommendation.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <ranges>
#include <variant>

#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"
#include "report/words.h"

namespace firkin {

namespace {

// What the measured steps of a configuration leave open about the fastest setting: sentences, each with a full stop before
// it.
std::string doubts_about_fastest(const StepConfiguration& configuration, size_t fastest) {
  std::string text;
  if (configuration.strategies[fastest].exposed_s.value_or(1) <= 0) {
    text += ". Steps without communication took as long, so what it exposes is not known";
  }
  if (!configuration.samples.contains("step_s")) return text;
  std::vector<std::vector<double>> communicate;
  for (size_t i = 0; i < configuration.strategies.size(); ++i) {
    if (configuration.strategies[i].strategy == "none") continue;
    communicate.push_back(configuration.samples.at("step_s").at(i).get<std::vector<double>>());
  }
  const size_t as_fast = indifference_set(communicate).members.size() - 1;
  if (as_fast > 0) text += fmt::format(". {} of {} other settings may be as fast", as_fast, communicate.size() - 1);
  return text;
}

std::string steps_heading(const Results& results) {
  std::vector<std::string> names, skipped;
  std::string first;
  for (const StepConfiguration& configuration : results.configurations) {
    if (configuration.strategies.empty()) skipped.push_back(name_of(configuration.model));
    auto communicate = configuration.strategies | std::views::filter([](const StrategyRow& row) { return row.strategy != "none"; });
    const auto best = std::ranges::min_element(communicate, {}, &StrategyRow::measured_s);
    if (best == communicate.end()) continue;
    if (first.empty()) {
      first = fmt::format("Fastest for {}: {}, {} per step", name_of(configuration.model), setting_name(*best),
                          display_seconds(best->measured_s));
      if (best->exposed_s > 0) first += fmt::format(", {} of it exposed communication", display_seconds(*best->exposed_s));
      first += doubts_about_fastest(configuration, static_cast<size_t>(&*best - configuration.strategies.data()));
    }
    names.push_back(setting_name(*best));
  }
  if (skipped.size() == results.configurations.size())
    return fmt::format("None of {} configurations fits into memory.", results.configurations.size());
  if (names.empty()) return "Steps without communication were measured, and no others.";
  std::string text = first + ".";
  const auto wins = std::ranges::count(names, names.front());
  if (names.size() > 1) text += fmt::format(" {} is the fastest in {} of {} configurations.", names.front(), wins, names.size());
  if (!skipped.empty())
    text += fmt::format(" {} of {} configurations did not fit into memory.", skipped.size(), results.configurations.size());
  return text;
}

std::string trace_heading(const std::vector<TraceRow>& traces) {
  const auto shares = [](const TraceRow& trace) { return overlapped_share(trace).value_or(-1); };
  const TraceRow& best = *std::ranges::max_element(traces, {}, shares);
  const std::optional<double> most = overlapped_share(best);
  if (!most) return fmt::format("Timelines of a step under {} settings.", traces.size());
  return fmt::format("The strategy {} hides the most: {} of its communication overlaps computation.", best.name, display_percent(*most));
}

std::string layers_heading(const LayersSection& section) {
  const LayerRow* slowest = nullptr;
  for (const LayerRow& layer : section.layers) {
    if (!layer.backward_s.empty() && (!slowest || median(layer.backward_s) > median(slowest->backward_s))) slowest = &layer;
  }
  const auto time = [](const std::vector<double>& seconds) {
    return seconds.empty() ? std::string("–") : display_seconds(median(seconds));
  };
  std::string text = fmt::format("Forward takes {}, backward {}, the optimiser {}.", time(section.forward_s), time(section.backward_s),
                                 time(section.optimizer_s));
  if (slowest) text += fmt::format(" The longest part of backward is {} with {}.", slowest->name, time(slowest->backward_s));
  return text;
}

std::string chunks_heading(const std::vector<ChunksRow>& chunks) {
  const ChunksRow& first = chunks.front();
  const ChunksRow& last = chunks.back();
  std::string text =
      fmt::format("The data takes {} in {} chunks of {}", display_seconds(first.total_s), first.calls, format_bytes(first.chunk_bytes));
  if (chunks.size() > 1)
    text += fmt::format(" and {} in {} of {}", display_seconds(last.total_s), last.calls, format_bytes(last.chunk_bytes));
  return text + ".";
}

// For the largest size: what the two collectives that replace an all-reduce take together.
std::string collectives_heading(const std::vector<CollectiveRow>& rows) {
  double seconds = 0, ratio = 0;
  for (const CollectiveRow& row : rows) {
    if (row.bytes != rows.back().bytes || !row.ratio_to_allreduce) continue;
    seconds += row.seconds;
    ratio += *row.ratio_to_allreduce;
  }
  return fmt::format("Reduce-scatter and all-gather of {} take {} together, {:.2f} of an all-reduce.", format_bytes(rows.back().bytes),
                     display_seconds(seconds), ratio);
}

// "0.286 Gbit/s"
std::string link_rate(double bytes_per_s) {
  return fmt::format("{:.3g} Gbit/s", 8e-9 * bytes_per_s);
}

std::string links_heading(const std::vector<LinkRow>& links) {
  std::vector<std::string> slow;
  for (const LinkRow& link : links) {
    if (link.is_slow) {
      slow.push_back(fmt::format("{} (rank {}), {}, {} of the fastest", link.host, link.rank, link_rate(link.bytes_per_s),
                                 display_percent(link.share)));
    }
  }
  if (!slow.empty()) return fmt::format("Slow link{}: {}.", slow.size() == 1 ? "" : "s", fmt::join(slow, "; "));
  const auto [least, most] = std::ranges::minmax(links, {}, &LinkRow::bytes_per_s);
  if (links.size() == 2) {
    return fmt::format("The two ranks exchange {} each way. Which of their links limits that takes a third to tell.",
                       link_rate(most.bytes_per_s));
  }
  return fmt::format("No link is slower than the others: the slowest has {}, {} of the fastest.", link_rate(least.bytes_per_s),
                     display_percent(least.share));
}

std::string allreduce_heading(const std::vector<AllReduceRow>& sizes) {
  const AllReduceRow& first = sizes.front();
  const AllReduceRow& last = sizes.back();
  if (sizes.size() == 1) return fmt::format("An all-reduce of {} takes {}.", format_bytes(first.bytes), display_seconds(first.median_s));
  return fmt::format("An all-reduce takes {} for {} and {} for {}.", display_seconds(first.median_s), format_bytes(first.bytes),
                     display_seconds(last.median_s), format_bytes(last.bytes));
}

std::string traced_heading(const TracedRun& run) {
  const TracedRank& rank = *std::ranges::max_element(run.ranks, {}, &TracedRank::backward_s);
  return fmt::format("A step takes {}: backward {}, and then {} ({}) of communication that nothing hides.", display_seconds(rank.step_s),
                     display_seconds(rank.backward_s), display_seconds(rank.exposed_s), display_percent(rank.exposed_s / rank.step_s));
}

// The cap that the run had, as far as its buckets say it.
std::string traced_cap(const TracedRun& run) {
  if (!run.cap_bytes) return "";
  const double lowest_mib = mib(run.lowest_cap_bytes.value_or(0));
  const std::string others = run.highest_cap_bytes ? fmt::format("{:.4g} to {:.4g}", lowest_mib, mib(*run.highest_cap_bytes))
                                                   : fmt::format("from {:.4g}", lowest_mib);
  return fmt::format("bucket_cap_mb={:.4g}{} makes exactly its {} buckets, as does any {}.", mib(*run.cap_bytes),
                     run.is_default_cap ? ", PyTorch's default," : "", run.buckets.size(), others);
}

std::string heading_of(const Results& results) {
  if (results.traced) return traced_heading(*results.traced);
  const auto predicts = [](const CurveRow& row) { return row.predicted_s.has_value(); };
  const auto& rows = results.dense_curve.empty() ? results.curve : results.dense_curve;
  if (std::ranges::any_of(rows, predicts)) {
    const auto best = std::ranges::min_element(rows, {}, [](const CurveRow& row) { return row.predicted_s.value_or(HUGE_VAL); });
    return fmt::format("The best cap is predicted to be {}, at {} per step.", cap_with_unit(best->cap_bytes),
                       display_seconds(*best->predicted_s));
  }
  if (!results.configurations.empty()) return steps_heading(results);
  if (!results.traces.empty()) return trace_heading(results.traces);
  if (results.layers) return layers_heading(*results.layers);
  if (!results.chunks.empty()) return chunks_heading(results.chunks);
  if (!results.collectives.empty()) return collectives_heading(results.collectives);
  if (!results.links.empty()) return links_heading(results.links);
  if (!results.allreduce.empty()) return allreduce_heading(results.allreduce);
  return fmt::format("Results of firkin {}.", results.run.command);
}

std::string kicker(const Results& results) {
  const RunHead& run = results.run;
  std::vector<std::string> parts = {fmt::format("firkin {}", run.command)};
  const Environment& environment = run.environment;
  if (run.model) parts.push_back(fmt::format("model {}", run.model->name));
  if (results.traced) parts.push_back(counted(results.traced->steps, "step"));
  if (environment.world_size) parts.push_back(counted(*environment.world_size, "rank"));
  if (results.prediction) parts.push_back(fmt::format("{} ranks", results.prediction->workload.world_size));
  if (environment.backend) parts.push_back(*environment.backend);
  if (environment.link) parts.push_back("modelled link " + *environment.link);
  if (run.started.size() >= 10) parts.push_back(run.started.substr(0, 10));
  return fmt::format("{}", fmt::join(parts, " · "));
}

// The lines of a watch: its steps, the verdict on other bucket sizes, and where the time goes.
void add_watched(const Results& results, Wording& answer) {
  answer.notes.clear();
  for (const std::string& line : results.notes) {
    std::string text;  // columns are for a terminal
    std::ranges::unique_copy(line, std::back_inserter(text), [](char a, char b) { return a == ' ' && b == ' '; });
    if (answer.heading.empty()) {
      answer.heading = text;
    } else if (text.starts_with("a better bucket size")) {
      answer.certainty = text;
    } else if (text.starts_with("next: ") && answer.next_step.empty()) {
      answer.next_step = text.substr(6);
    } else if (text.starts_with("note: ")) {
      answer.notes.push_back(text.substr(6));
    } else {
      answer.lead.push_back(text);
    }
  }
}

}  // namespace

std::string_view words_of(TuningPhase phase) {
  constexpr std::array<std::string_view, 8> kWords = {
      "profiling backward",   "measuring all-reduce",     "calibrating",
      "racing the best caps", "racing ordered's buckets", "measuring reduce-scatter and all-gather",
      "racing options",       "measuring the gain"};
  return kWords[static_cast<size_t>(phase)];
}

namespace {

struct SentenceOfNote {
  std::string operator()(const SameBuckets& same) const {
    const std::string measured = format_bytes(same.measured_bytes);
    return fmt::format("{} makes the same buckets as {}: measured once, as {}", format_bytes(same.cap_bytes), measured, measured);
  }
  std::string operator()(const UntriedOptions& /*none*/) const {
    return "options of DistributedDataParallel were not tried: there was no time";
  }
  std::string operator()(const OptionRace& raced) const {
    const auto& [ratio, interval] = raced.to_without;
    return fmt::format("{}=True: {:.3f} ({:.3f} to {:.3f}) of a step without it{}", raced.option, ratio, interval.low, interval.high,
                       raced.wins ? ", and is measured again" : "");
  }
  std::string operator()(const CalibrationBuckets& buckets) const {
    return fmt::format("the model was also calibrated on the buckets of {}, so their step does not test the prediction",
                       buckets.cap_bytes ? format_bytes(*buckets.cap_bytes) : "PyTorch's default");
  }
  std::string operator()(const LevelChange& changed) const {
    return fmt::format(
        "a step without communication took {:.0f} % {} than when the model was calibrated: predicted times may be off by up to about that "
        "much; what was compared in the same blocks is not affected",
        100 * std::abs(changed.level - 1), changed.level > 1 ? "longer" : "less");
  }
  std::string operator()(UnmeasuredStrategy strategy) const {
    switch (strategy) {
      case UnmeasuredStrategy::kOrderedWithoutAwaiting:
        return "ordered is not measured: no module awaits its parameters, see await_parameters()";
      case UnmeasuredStrategy::kOrderedWithoutOptimizer:
        return "ordered is not measured: the step function would have to use an OverlappedOptimizer";
      case UnmeasuredStrategy::kShardedWithoutOptimizer:
        break;
    }
    return "sharded is not measured: the step function would have to use a ShardedOptimizer";
  }
  std::string operator()(const SingleSize& single) const {
    return fmt::format("the all-reduce table has one size for {} ranks, {}: times of other sizes are guesses", single.world_size,
                       format_bytes(single.bytes));
  }
  std::string operator()(const NoSmallSize& sizes) const {
    return fmt::format(
        "the smallest all-reduce of {} ranks is {}: the table does not show the latency every bucket pays; measure {} or less too",
        sizes.world_size, format_bytes(sizes.smallest_bytes), format_bytes(kLargestOfLatency));
  }
  std::string operator()(const ImplausibleTime& time) const {
    return fmt::format("an all-reduce of {} among {} ranks takes {} seconds: is the column in another unit?", format_bytes(time.bytes),
                       time.world_size, time.seconds);
  }
  std::string operator()(const ImplausibleBackward& backward) const {
    return fmt::format("backward takes {} seconds by {}: is that column in milliseconds?", backward.seconds, kTensorReady);
  }
};

template <class Note>
std::vector<std::string> sentences_of(const std::vector<Note>& notes) {
  std::vector<std::string> sentences;
  for (const Note& note : notes) sentences.push_back(std::visit(SentenceOfNote(), note));
  return sentences;
}

}  // namespace

std::vector<std::string> notes_of(const Tuning& tuning) {
  return sentences_of(tuning.notes);
}

std::vector<std::string> notes_of(const Prediction& prediction) {
  return sentences_of(prediction.doubts);
}

Wording summarize(const Results& results) {
  Wording answer;
  answer.kicker = kicker(results);
  if (!results.complete) answer.warnings.push_back("This run is incomplete: it was interrupted or is still running.");
  if (const auto& link = results.run.environment.link) {
    answer.warnings.push_back(fmt::format(
        "Modelled link ({}): times that include communication are those of this link, not of the one that carried the data.", *link));
  }
  answer.notes = results.notes;
  if (results.decision || results.prediction) {
    recommend(results, answer);
  } else if (results.run.command == "watch" && !results.notes.empty()) {
    add_watched(results, answer);
  } else {
    answer.heading = heading_of(results);
  }
  if (results.traced) {
    answer.lead.push_back(traced_cap(*results.traced));
    answer.lead.insert(answer.lead.end(), results.traced->findings.begin(), results.traced->findings.end());
  }
  std::erase(answer.lead, "");
  return answer;
}

std::string answer_in_text(const Results& results) {
  const Wording answer = summarize(results);
  std::string text = wrapped("", answer.heading);
  if (!answer.certainty.empty()) text += wrapped("", answer.certainty);
  if (!answer.settings.empty()) text += wrapped("  paste   ", answer.settings[0].setting);
  if (answer.recommends_own_engine) text += wrapped("  firkin  ", answer.own_engine);
  if (!answer.next_step.empty()) text += wrapped("  next    ", answer.next_step);
  if (!answer.settings.empty() && !results.decision) text += '\n';
  for (const std::string& warning : answer.warnings) text += wrapped("Warning: ", warning);
  if (!results.decision) {  // the reasons of a tuning are on its page only
    for (const std::string& paragraph : answer.lead) text += wrapped("", paragraph);
    for (const std::string& note : answer.notes) text += wrapped("Note: ", note);
  }
  return text;
}

std::string configuration_in_text(const StepConfiguration& configuration) {
  const ModelDescription& model = configuration.model;
  std::string title = name_of(model);
  if (model.tensors && model.gradient_bytes)
    title += fmt::format(": {} tensors, {} of gradients", *model.tensors, format_bytes(*model.gradient_bytes));
  if (configuration.strategies.empty()) {
    return fmt::format("{}\n{} (skipping this config): {}\n", title, configuration.status, configuration.reason.value_or(""));
  }
  const std::vector<StrategyRow>& rows = configuration.strategies;
  return fmt::format("{}\n{}\n{}", title, terminal_table(strategy_table(rows, kFirstTable)),
                     terminal_table(strategy_table(rows, kSecondTable)));
}

std::string results_in_text(const Results& results) {
  // The answer comes first and last, since either may have scrolled off the screen.
  const std::string heading = wrapped("", summarize(results).heading);
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "\n") + part; };
  if (results.decision) {
    add(answer_in_text(results));
    const bool compared = std::ranges::find(results.strategies, "naive", &StrategyRow::strategy) != results.strategies.end();
    std::vector<std::string> remarks;
    for (const CurveRow& row : results.curve) {
      const std::string remark = remark_on(results, row.cap_bytes);  // kept short: the widest rows leave a dozen columns
      const std::string word = remark.find(',') == std::string::npos ? remark.substr(0, remark.find(' ')) : "best";
      remarks.push_back(remark.empty() || remark == "not told apart" ? "" : "< " + word);
    }
    if (compared || results.strategies.empty()) add(terminal_table(curve_table(results.curve, kFirstTable), remarks));
    std::vector<StrategyRow> strategies = results.strategies;
    for (StrategyRow& row : strategies) row.measured_ci_s.reset(), row.comm_s.reset();  // for 80 columns; the page has them
    if (!strategies.empty()) add(terminal_table(strategy_table(strategies, kFirstTable)));
    return text;
  }
  if (results.prediction) {
    for (const Table& table : prediction_tables(*results.prediction, kFirstTable)) {
      std::vector<std::string> remarks;
      for (const Table::Row& row : table.rows) remarks.push_back(row.highlighted ? "<" : "");
      add(wrapped("", table.caption) + terminal_table(table, remarks));
    }
  }
  for (const StepConfiguration& configuration : results.configurations) add(configuration_in_text(configuration));
  // Without a caption, times of one rank would look like those of all.
  const bool of_a_rank = results.traced || !results.traces.empty();
  for (const Table& table : section_tables(results, kFirstTable)) {
    add((of_a_rank ? wrapped("", table.caption) : "") + terminal_table(table));
  }
  if (!results.allreduce.empty() && text.empty()) add(terminal_table(allreduce_table(results.allreduce, kFirstTable)));
  const bool has_tables = !text.empty();
  add(answer_in_text(results));
  return has_tables ? heading + "\n" + text : text;
}

}  // namespace firkin
