// What `firkin predict` says, as sections of results.json and as tables.
#pragma once

#include <vector>

#include "firkin/plan/prediction.h"
#include "results/field.h"

namespace firkin {

void write_prediction(const Prediction& prediction, nlohmann::json& document);
Prediction read_prediction(const JsonFields& document);

// What staying with the cap that is best at factor 1 costs there, as a fraction.
double cost_of_keeping(const SensitivityPoint& point);

// T(b), the best plan's buckets (in the terminal the first and the last of many), the ordered plan's, hooks, what the extrapolations
// disagree on, baselines, sensitivity: those that there are. The best row of T(b) is highlighted.
std::vector<Table> prediction_tables(const Prediction& prediction, Medium medium);

}  // namespace firkin
