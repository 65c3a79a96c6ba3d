#include "tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_builders.h"
#include "firkin/base/units.h"
#include "numbers.h"

namespace firkin {
namespace {

constexpr const char* kAbsent = "–";

std::string maybe_time(const std::optional<double>& seconds, const TimeUnit& unit) {
  return seconds ? unit.text(*seconds) : kAbsent;
}

std::string maybe_interval(const std::optional<Interval>& interval, const TimeUnit& unit) {
  return interval ? fmt::format("{} to {}", unit.text(interval->low), unit.text(interval->high)) : kAbsent;
}

std::string maybe_count(const std::optional<int64_t>& count) {
  return count ? fmt::format("{}", *count) : kAbsent;
}

// What the answer says about a cap.
std::string verdict(const Results& results, double cap_mib) {
  if (!results.answer) return "";
  const TuneAnswer& answer = *results.answer;
  const bool predicted = cap_mib == answer.best_predicted.cap_mib;
  const bool measured = cap_mib == answer.best_measured.cap_mib;
  if (predicted && measured) return "predicted and measured best";
  if (predicted) return "predicted best";
  if (measured) return "measured best";
  const bool tied = std::ranges::any_of(answer.indifference_set, [&](double cap) { return std::abs(cap - cap_mib) < 1e-9 * cap_mib; });
  return tied ? "tied" : "";
}

}  // namespace

Table curve_table(const Results& results) {
  double largest = 0;
  for (const CurveRow& row : results.curve) largest = std::max({largest, row.predicted_s.value_or(0), row.measured_s.value_or(0)});
  const TimeUnit unit = time_unit(largest);
  Table table{"Step time by bucket cap (error: predicted / measured − 1)", {{"Cap (MiB)"}, {"Buckets"}}, {}};
  table.columns.push_back({fmt::format("Predicted ({})", unit.symbol)});
  const bool has_measured = std::ranges::any_of(results.curve, [](const CurveRow& row) { return row.measured_s.has_value(); });
  if (has_measured) {
    table.columns.push_back({fmt::format("Measured ({})", unit.symbol)});
    table.columns.push_back({"Error"});
    table.columns.push_back({fmt::format("95 % interval ({})", unit.symbol)});
    table.columns.push_back({"", false});
  }
  for (const CurveRow& row : results.curve) {
    Table::Row cells{{display_cap(row.cap_mib), maybe_count(row.buckets), maybe_time(row.predicted_s, unit)}};
    if (has_measured) {
      const std::string remark = verdict(results, row.cap_mib);
      cells.cells.insert(cells.cells.end(), {maybe_time(row.measured_s, unit), row.error ? display_percent(*row.error, true) : kAbsent,
                                             maybe_interval(row.measured_ci_s, unit), remark});
      cells.highlighted = remark.ends_with("best");
    }
    table.rows.push_back(cells);
  }
  return table;
}

Table strategy_table(const Results& results) {
  const std::vector<StrategyRow> rows = compared_strategies(results);
  double largest = 0;
  for (const StrategyRow& row : rows) largest = std::max(largest, row.measured_s);
  const TimeUnit unit = time_unit(largest);
  const bool has_exposed = std::ranges::any_of(rows, [](const StrategyRow& row) { return row.exposed_s.has_value(); });
  const bool has_comm = std::ranges::any_of(rows, [](const StrategyRow& row) { return row.comm_s.has_value(); });
  const bool has_predicted = std::ranges::any_of(rows, [](const StrategyRow& row) { return row.predicted_s.has_value(); });
  Table table{"Step time by strategy", {{"Strategy", false}, {"Buckets"}, {fmt::format("Step ({})", unit.symbol)}}, {}};
  table.columns.push_back({fmt::format("95 % interval ({})", unit.symbol)});
  if (has_predicted) table.columns.push_back({fmt::format("Predicted ({})", unit.symbol)});
  if (has_exposed) table.columns.push_back({fmt::format("Exposed ({})", unit.symbol)});
  if (has_comm) table.columns.push_back({fmt::format("After backward ({})", unit.symbol)});
  for (const StrategyRow& row : rows) {
    Table::Row cells{{row.strategy, maybe_count(row.buckets), unit.text(row.measured_s), maybe_interval(row.measured_ci_s, unit)}};
    if (has_predicted) cells.cells.push_back(maybe_time(row.predicted_s, unit));
    if (has_exposed) cells.cells.push_back(maybe_time(row.exposed_s, unit));
    if (has_comm) cells.cells.push_back(maybe_time(row.comm_s, unit));
    table.rows.push_back(cells);
  }
  return table;
}

Table allreduce_table(const Results& results) {
  Table table{
      "Time of an all-reduce by size", {{"Size"}, {"Ranks"}, {"Median a(x)"}, {"Queued g(x)"}, {"Least"}, {"Greatest"}, {"Samples"}}, {}};
  const auto time = [](const std::optional<double>& seconds) { return seconds ? display_seconds(*seconds) : std::string(kAbsent); };
  for (const AllReduceRow& row : results.allreduce) {
    table.rows.push_back({{format_bytes(row.bytes), fmt::format("{}", row.world_size), display_seconds(row.median_s), time(row.gap_s),
                           time(row.min_s), time(row.max_s), maybe_count(row.samples)}});
  }
  return table;
}

Table ready_table(const Results& results) {
  Table table{
      "Gradients in the order in which they become ready", {{"Tensor", false}, {"Gradient"}, {"Ready after"}, {"Ready so far"}}, {}};
  int64_t total = 0;
  for (size_t i = 0; i < results.profile->names.size(); ++i) {
    const TensorProfile& profile = *results.profile;
    total += profile.bytes[i];
    table.rows.push_back({{profile.names[i], format_bytes(profile.bytes[i]), display_seconds(profile.ready_s[i]), format_bytes(total)}});
  }
  return table;
}

}  // namespace firkin
