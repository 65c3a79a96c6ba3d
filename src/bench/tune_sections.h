// What `firkin tune` found, as the sections of results.json.
#pragma once

#include "bench/tuner.h"
#include "results/results.h"

namespace firkin {

// Fills everything but the run's head. A result that is not complete has no answer.
void add_tune(const TuneResult& tuned, Results& results);

}  // namespace firkin
