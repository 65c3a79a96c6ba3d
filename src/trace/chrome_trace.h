// Spans as a Chrome trace: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing show.
// Format: "Trace Event Format", Google, 2016.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "trace/span.h"

namespace firkin {

// One process per rank: operators and phases on the threads that ran them, collectives as asynchronous events beside them.
// Times are microseconds since the first span.
nlohmann::json chrome_trace(const std::vector<std::vector<Span>>& spans_by_rank);

}  // namespace firkin
