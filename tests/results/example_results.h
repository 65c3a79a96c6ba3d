// Results for tests: a tuning's, from a file that the tests in Python share, and a prediction's.
#pragma once

#include "../plan/helpers.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "results/results.h"

namespace firkin {

inline nlohmann::json tune_document() {
  return nlohmann::json::parse(read_file(FIRKIN_SOURCE_DIR "/tests/report/data/tune.json"));
}

inline Results tune_results() {
  return results_from_json(tune_document());
}

// Twelve tensors of 2 MiB that take twice as long as backward; caps of 1, 7 and 25 MiB, of which none is the best.
inline Results predicted_results() {
  Results results;
  results.run = begin_head("predict");
  AllReduceTable table;
  for (const int64_t bytes : {kKiB, kMiB, 64 * kMiB}) {
    table.push_back({.bytes = bytes, .world_size = 64, .median_s = 2.4e-3 + 1e-8 * static_cast<double>(bytes)});
  }
  results.prediction =
      predict({.profile = even_profile(12, 2 * kMiB, 0.13), .table = table, .world_size = 64, .caps = {kMiB, 7 * kMiB, 25 * kMiB}});
  return results;
}

}  // namespace firkin
