// One function per chart; each returns nothing when there is nothing to draw. Each fills the template of charts/ named in brackets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/charts.h"
#include "results/results.h"

namespace firkin {

std::optional<Chart> curve_chart(const Results& results);      // [curve] step time over bucket size, predicted and measured
std::optional<Chart> allreduce_chart(const Results& results);  // [allreduce] a(x), g(x) and the alpha-beta fit
std::optional<Chart> chunks_chart(const Results& results);     // [chunks] time of a fixed amount of data over the size of its chunks
std::optional<Chart> loss_chart(const Results& results);       // [loss] loss of a training over its steps
std::optional<Chart> pace_chart(const Results& results);       // [pace] time of its steps, split in compute and exposed communication
std::optional<Chart> ready_chart(const Results& results);      // [ready] gradient bytes ready over the time of backward
std::optional<Chart> timeline_chart(const Results& results);   // [timeline] when one step computed and when it communicated
std::optional<Chart> strategy_chart(const Results& results);   // [strategies] step times, split in compute and exposed communication

// T(b), and the heat maps of its sensitivity where that was computed.
std::vector<Chart> prediction_charts(const Prediction& prediction);

// The rows of the strategies' chart and table: as measured, and the best measured cap as one more when the results name it.
std::vector<StrategyRow> compared_strategies(const Results& results);

// [timeline] One step of one setting, in seconds since it began; `predicted` may be empty.
struct TimelineRow {
  std::string setting;
  std::vector<BusyPeriod> measured, predicted;
};
std::optional<Chart> timeline_chart_of(const std::vector<TimelineRow>& rows);

// [curve] T(b) of `firkin predict`: the predicted_s of `curve` and of its `best` row; and the time of the best plan of unequal buckets.
std::optional<Chart> predicted_chart(const std::vector<CurveRow>& curve, const CurveRow& best, std::optional<double> best_plan_s);

// [layers] Median times of one layer, seconds; `firkin bench layers` may not have seen its forward. In the order of forward.
struct LayerBar {
  std::string name;
  std::optional<double> forward_s;
  double backward_s = 0;
};
std::optional<Chart> layers_chart(const std::vector<LayerBar>& layers);

// [step_matrix] One setting of `firkin bench step` in one configuration. Without a time `problem` says why ("out of memory"); where that
// is true of all settings, `setting` is empty.
struct StepDot {
  std::string configuration;  // "gpt2, batch 4, 256 tokens"
  std::string setting;        // "bucketed 25 MiB"
  std::optional<double> measured_s;
  std::optional<Interval> measured_ci_s;  // 95 %
  std::string problem;
};
std::optional<Chart> step_matrix_chart(const std::vector<StepDot>& steps);

// [ratios] compare_results().settings
std::optional<Chart> ratios_chart(const std::vector<ComparedSetting>& settings);

}  // namespace firkin
