// The results as tables: the same numbers as in the charts, for reading, copying, and for those who cannot see the charts.
#pragma once

#include "html.h"
#include "results.h"

namespace firkin {

Table curve_table(const Results& results);
Table strategy_table(const Results& results);
Table allreduce_table(const Results& results);
Table ready_table(const Results& results);

}  // namespace firkin
