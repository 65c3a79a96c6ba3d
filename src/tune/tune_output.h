// What tuning shows while it runs, and writes beside results.json.
#pragma once

#include <vector>

#include "bench/tuner.h"
#include "report/result_folder.h"

namespace firkin {

// Progress lines on standard error, if `enabled`; the last line is ended when options.on_progress goes.
void show_progress(TuneOptions& options, bool enabled);

// tensors.csv and allreduce.csv, as far as they are known.
std::vector<OutputFile> tables_of(const TuneResult& tuned);

}  // namespace firkin
