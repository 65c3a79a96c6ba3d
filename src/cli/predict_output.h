// The result of `firkin predict` for a script, for a person, and as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "predict_result.h"
#include "report/sensitivity_page.h"

namespace firkin::cli {

nlohmann::json predict_json(const PredictResult& result);

// Tables and the answer in words, 80 columns wide.
std::string predict_table(const PredictResult& result);

// Only with result.sensitivity.
SensitivityReport sensitivity_report(const PredictResult& result);

}  // namespace firkin::cli
