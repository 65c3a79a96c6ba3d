// What was measured, in words; the answers of `firkin tune` and `firkin predict` are in recommendation.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/units.h"
#include "firkin/stats/summary.h"
#include "report/report.h"

namespace firkin {
namespace {

// The fastest setting that communicates; null when none was measured.
const StrategyRow* fastest(const std::vector<StrategyRow>& rows) {
  const StrategyRow* best = nullptr;
  for (const StrategyRow& row : rows) {
    if (row.strategy != "none" && (!best || row.measured_s < best->measured_s)) best = &row;
  }
  return best;
}

std::string steps_heading(const Results& results) {
  std::vector<std::string> names, skipped;
  std::string first;
  for (const StepConfiguration& configuration : results.configurations) {
    const StrategyRow* best = fastest(configuration.strategies);
    if (configuration.strategies.empty()) skipped.push_back(name_of(configuration.model));
    if (!best) continue;
    if (first.empty()) {
      first = fmt::format("Fastest for {}: {}, {} per step", name_of(configuration.model), setting_name(*best),
                          display_seconds(best->measured_s));
      if (best->exposed_s) first += fmt::format(", {} of it exposed communication", display_seconds(std::max(0.0, *best->exposed_s)));
    }
    names.push_back(setting_name(*best));
  }
  if (first.empty()) return fmt::format("None of {} configurations fits into memory.", results.configurations.size());
  std::string text = first + ".";
  const auto wins = std::ranges::count(names, names.front());
  if (names.size() > 1) text += fmt::format(" It is the fastest in {} of {} configurations.", wins, names.size());
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

std::string training_heading(const TrainingSection& training) {
  std::string text = fmt::format("{} of {} steps", training.steps, training.planned_steps);
  if (training.last_loss) text += fmt::format(": loss {:.4f}", *training.last_loss);
  if (training.last_held_loss) text += fmt::format(", on held-out data {:.4f}", *training.last_held_loss);
  if (training.tokens_per_s) text += fmt::format("; {:.0f} tokens/s", *training.tokens_per_s);
  if (training.exposed_share) text += fmt::format(", {} of the time exposed communication", display_percent(*training.exposed_share));
  return text + ".";
}

std::string chunks_heading(const std::vector<ChunksRow>& chunks) {
  const ChunksRow& first = chunks.front();
  const ChunksRow& last = chunks.back();
  if (chunks.size() == 1) {
    return fmt::format("The data takes {} in {} chunks of {}.", display_seconds(first.total_s), first.calls,
                       format_bytes(first.chunk_bytes));
  }
  return fmt::format("The data takes {} in {} chunks of {} and {} in {} of {}.", display_seconds(first.total_s), first.calls,
                     format_bytes(first.chunk_bytes), display_seconds(last.total_s), last.calls, format_bytes(last.chunk_bytes));
}

// Of the largest size: what the two that take an all-reduce's place take together.
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

std::string allreduce_heading(const std::vector<AllReduceRow>& sizes) {
  const AllReduceRow& first = sizes.front();
  const AllReduceRow& last = sizes.back();
  if (sizes.size() == 1) return fmt::format("An all-reduce of {} takes {}.", format_bytes(first.bytes), display_seconds(first.median_s));
  return fmt::format("An all-reduce takes {} for {} and {} for {}.", display_seconds(first.median_s), format_bytes(first.bytes),
                     display_seconds(last.median_s), format_bytes(last.bytes));
}

std::string comparison_heading(const Comparison& comparison) {
  const auto count = [&comparison](Verdict verdict) { return std::ranges::count(comparison.settings, verdict, &ComparedSetting::verdict); };
  return fmt::format("Of {} settings in both runs, B is faster in {}, slower in {}, and indistinguishable from A in {}.",
                     comparison.settings.size(), count(Verdict::kFaster), count(Verdict::kSlower),
                     count(Verdict::kSame) + count(Verdict::kUnknown));
}

std::string heading_of(const Results& results) {
  const auto predicts = [](const CurveRow& row) { return row.predicted_s.has_value(); };
  const auto& rows = results.dense_curve.empty() ? results.curve : results.dense_curve;
  if (std::ranges::any_of(rows, predicts)) {
    const auto best = std::ranges::min_element(rows, {}, [](const CurveRow& row) { return row.predicted_s.value_or(HUGE_VAL); });
    return fmt::format("The best cap is predicted to be {} MiB, at {} per step.", display_cap(best->cap_mib),
                       display_seconds(*best->predicted_s));
  }
  if (results.comparison) return comparison_heading(*results.comparison);
  if (!results.configurations.empty()) return steps_heading(results);
  if (!results.strategies.empty()) return fmt::format("Step times of {} strategies.", results.strategies.size());
  if (!results.traces.empty()) return trace_heading(results.traces);
  if (results.layers) return layers_heading(*results.layers);
  if (results.training) return training_heading(*results.training);
  if (!results.chunks.empty()) return chunks_heading(results.chunks);
  if (!results.collectives.empty()) return collectives_heading(results.collectives);
  if (!results.allreduce.empty()) return allreduce_heading(results.allreduce);
  return fmt::format("Results of firkin {}.", results.run.command);
}

std::string kicker(const Results& results) {
  const RunHead& run = results.run;
  std::vector<std::string> parts = {fmt::format("firkin {}", run.command)};
  const Environment& environment = run.environment;
  if (run.model) parts.push_back(fmt::format("model {}", run.model->name));
  if (environment.world_size) parts.push_back(*environment.world_size == 1 ? "1 rank" : fmt::format("{} ranks", *environment.world_size));
  if (results.prediction) parts.push_back(fmt::format("{} ranks", results.prediction->workload.world_size));
  if (environment.backend) parts.push_back(*environment.backend);
  if (environment.link) parts.push_back("modelled link " + *environment.link);
  if (run.started.size() >= 10) parts.push_back(run.started.substr(0, 10));
  return fmt::format("{}", fmt::join(parts, " · "));
}

}  // namespace

Answer put_in_words(const Results& results) {
  Answer answer;
  answer.kicker = kicker(results);
  if (!results.complete) answer.warnings.push_back("This run is incomplete: it was interrupted or is still running.");
  if (const auto& link = results.run.environment.link) {
    answer.warnings.push_back(fmt::format(
        "Modelled link ({}): times that include communication are those of this link, not of the one that carried the data.", *link));
  }
  if (results.calibration && !results.calibration->fit.warning.empty())
    answer.warnings.push_back(fmt::format("Calibration: {}.", results.calibration->fit.warning));
  answer.notes = results.notes;
  if (results.comparison) answer.lead = reading_aid(*results.comparison);
  if (results.answer || results.prediction) {
    recommend(results, answer);
  } else {
    answer.heading = heading_of(results);
  }
  std::erase(answer.lead, "");
  return answer;
}

}  // namespace firkin
