#include "answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/units.h"
#include "numbers.h"

namespace firkin {
namespace {

std::string fact(const Facts& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &Facts::value_type::first);
  return found == facts.end() ? "" : found->second;
}

// "8, 16 and 25"
std::string enumerated(const std::vector<std::string>& items) {
  if (items.size() < 2) return items.empty() ? "" : items[0];
  return fmt::format("{} and {}", fmt::join(items.begin(), items.end() - 1, ", "), items.back());
}

std::vector<std::string> cap_texts(const std::vector<double>& caps_mib) {
  std::vector<std::string> texts;
  for (const double cap : caps_mib) texts.push_back(display_cap(cap));
  return texts;
}

std::string bucket_count(const CurveRow& row) {
  if (!row.buckets) return "";
  return *row.buckets == 1 ? "1 bucket" : fmt::format("{} buckets", *row.buckets);
}

std::string interval_text(const std::optional<Interval>& interval) {
  if (!interval) return "";
  return fmt::format("95 % interval {} to {}", display_percent(interval->low), display_percent(interval->high));
}

bool all_tied(const Results& results) {
  return results.answer->indifference_set.size() >= results.curve.size();
}

bool is_tied(const TuneAnswer& answer, double cap_mib) {
  return std::ranges::any_of(answer.indifference_set, [&](double cap) { return std::abs(cap - cap_mib) < 1e-9 * cap_mib; });
}

std::string tune_heading(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  const std::string cap = display_cap(answer.best_predicted.cap_mib);
  if (answer.best_predicted.cap_mib == answer.best_measured.cap_mib) {
    return fmt::format("A cap of {} MiB is best: the prediction and the measurement agree.", cap);
  }
  const std::string measured = display_cap(answer.best_measured.cap_mib);
  if (all_tied(results)) {
    return fmt::format("A cap of {} MiB is predicted to be best; all {} measured caps are tied.", cap, results.curve.size());
  }
  if (!is_tied(answer, answer.best_predicted.cap_mib)) {
    return fmt::format("Predicted best: {} MiB. Measured best: {} MiB. Trusting the prediction costs {}.", cap, measured,
                       display_percent(answer.regret));
  }
  return fmt::format("A cap of {} MiB is predicted to be best, and cannot be told from the measured best, {} MiB.", cap, measured);
}

std::string regret_sentence(const TuneAnswer& answer) {
  const std::string interval = interval_text(answer.regret_ci);
  return fmt::format("Trusting the prediction costs {} of the step time{}.", display_percent(answer.regret),
                     interval.empty() ? "" : fmt::format(" ({})", interval));
}

std::string tie_sentence(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  if (all_tied(results)) {
    return "On this set-up the bucket size makes no difference that this measurement can show.";
  }
  if (answer.indifference_set.size() == 1) return "No other measured cap reaches it within the measurement's uncertainty.";
  return fmt::format("The caps {} MiB cannot be told from the best.", enumerated(cap_texts(answer.indifference_set)));
}

std::vector<std::string> tune_lead(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  std::string prediction = fmt::format("At {} MiB the model predicts {} a step", display_cap(answer.best_predicted.cap_mib),
                                       display_seconds(*answer.best_predicted.predicted_s));
  if (answer.best_predicted.measured_s) prediction += fmt::format("; {} was measured", display_seconds(*answer.best_predicted.measured_s));
  prediction += ".";
  if (answer.best_predicted.cap_mib != answer.best_measured.cap_mib) {
    prediction += fmt::format(" The measured best is {} MiB with {}.", display_cap(answer.best_measured.cap_mib),
                              display_seconds(*answer.best_measured.measured_s));
    prediction += fmt::format(" {}", regret_sentence(answer));
  }
  std::vector<std::string> lead = {fmt::format("{} {}", prediction, tie_sentence(results))};
  if (!results.warning.empty()) lead.push_back(fmt::format("Warning: {}", results.warning));
  return lead;
}

KeyFigure error_figure(const std::vector<CurveRow>& curve) {
  std::vector<double> errors;
  for (const CurveRow& row : curve) {
    if (row.predicted_s && row.measured_s) errors.push_back(std::abs(*row.predicted_s / *row.measured_s - 1));
  }
  std::ranges::sort(errors);
  const size_t middle = errors.size() / 2;
  const double median = errors.size() % 2 == 1 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2;
  return {"Prediction error", display_percent(median),
          fmt::format("median over {} caps; worst {}", errors.size(), display_percent(errors.back()))};
}

std::vector<KeyFigure> tune_figures(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  const CurveRow& predicted = answer.best_predicted;
  const CurveRow& measured = answer.best_measured;
  const auto best_note = [](const CurveRow& row, const std::string& time) {
    return row.buckets ? fmt::format("{}, {}", bucket_count(row), time) : time;
  };
  std::vector<KeyFigure> figures = {
      {"Predicted best cap", display_cap(predicted.cap_mib) + " MiB",
       best_note(predicted, display_seconds(*predicted.predicted_s) + " predicted")},
      {"Measured best cap", display_cap(measured.cap_mib) + " MiB",
       best_note(measured, display_seconds(*measured.measured_s) + " measured")},
      {"Cost of trusting it", display_percent(answer.regret), interval_text(answer.regret_ci)},
      {"Tied with the best", fmt::format("{} of {} caps", answer.indifference_set.size(), results.curve.size()),
       fmt::format("{} MiB", fmt::join(cap_texts(answer.indifference_set), ", "))},
      error_figure(results.curve)};
  const auto naive = std::ranges::find(results.strategies, "naive", &StrategyRow::strategy);
  if (naive != results.strategies.end()) {
    figures.push_back(
        {"Against naive", fmt::format("{:.2f} ×", naive->measured_s / *measured.measured_s),
         fmt::format("as fast: {} instead of {}", display_seconds(*measured.measured_s), display_seconds(naive->measured_s))});
  }
  return figures;
}

std::string other_heading(const Results& results) {
  const auto predicts = [](const CurveRow& row) { return row.predicted_s.has_value(); };
  const auto& rows = results.dense_curve.empty() ? results.curve : results.dense_curve;
  if (std::ranges::any_of(rows, predicts)) {
    const auto best = std::ranges::min_element(rows, {}, [](const CurveRow& row) { return row.predicted_s.value_or(HUGE_VAL); });
    return fmt::format("The best cap is predicted to be {} MiB, at {} a step.", display_cap(best->cap_mib),
                       display_seconds(*best->predicted_s));
  }
  if (!results.strategies.empty()) return fmt::format("Step times of {} strategies.", results.strategies.size());
  if (!results.traces.empty()) return fmt::format("What ran when in a step, under {} settings.", results.traces.size());
  if (!results.chunks.empty()) {
    const ChunksRow& first = results.chunks.front();
    const ChunksRow& last = results.chunks.back();
    return fmt::format("The data takes {} in {} chunks of {} and {} in {} of {}.", display_seconds(first.total_s), first.calls,
                       format_bytes(first.chunk_bytes), display_seconds(last.total_s), last.calls, format_bytes(last.chunk_bytes));
  }
  if (!results.allreduce.empty()) {
    return fmt::format("An all-reduce takes {} for {} and {} for {}.", display_seconds(results.allreduce.front().median_s),
                       format_bytes(results.allreduce.front().bytes), display_seconds(results.allreduce.back().median_s),
                       format_bytes(results.allreduce.back().bytes));
  }
  return fmt::format("Results of firkin {}.", results.command);
}

std::string kicker(const Results& results) {
  std::vector<std::string> parts = {fmt::format("firkin {}", results.command)};
  const std::string model = fact(results.model, "name");
  const std::string world = fact(results.environment, "world size");
  const std::string backend = fact(results.environment, "backend");
  if (!model.empty()) parts.push_back(fmt::format("model {}", model));
  if (!world.empty()) parts.push_back(world == "1" ? "1 rank" : world + " ranks");
  if (!backend.empty()) parts.push_back(backend);
  if (results.started.size() >= 10) parts.push_back(results.started.substr(0, 10));
  return fmt::format("{}", fmt::join(parts, " · "));
}

}  // namespace

Answer put_in_words(const Results& results) {
  Answer answer;
  answer.kicker = kicker(results);
  answer.title = answer.kicker;
  answer.heading = results.answer ? tune_heading(results) : other_heading(results);
  if (!results.answer) return answer;
  answer.lead = tune_lead(results);
  answer.figures = tune_figures(results);
  return answer;
}

}  // namespace firkin
