// One function per chart; each returns nothing when the results lack its section.
#pragma once

#include <optional>

#include "report/charts.h"
#include "results/results.h"

namespace firkin {

std::optional<Chart> curve_chart(const Results& results);      // step time over bucket size, predicted and measured
std::optional<Chart> allreduce_chart(const Results& results);  // a(x), g(x) and the alpha-beta fit
std::optional<Chart> chunks_chart(const Results& results);     // time of a fixed amount of data over the size of its chunks
std::optional<Chart> ready_chart(const Results& results);      // gradient bytes ready over the time of backward
std::optional<Chart> timeline_chart(const Results& results);   // when one step computed and when it communicated
std::optional<Chart> strategy_chart(const Results& results);   // step times, split in compute and exposed communication

// The rows of the strategies' chart and table: as measured, and the best measured cap as one more when the results name it.
std::vector<StrategyRow> compared_strategies(const Results& results);

}  // namespace firkin
