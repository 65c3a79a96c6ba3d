// How the best cap and the backward time move with their inputs, as heat maps and a table on one page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "firkin/plan/sensitivity.h"
#include "report/charts.h"

namespace firkin {

struct SensitivityReport {
  std::vector<std::string> command_line;
  std::string workload;                  // one line: tensors, bytes, ranks
  std::vector<std::string> notes;        // what else is to be known, a paragraph each: that figures are extrapolated, for one
  std::vector<SensitivityPoint> points;  // by influence, each by rising factor; as sensitivity_table() gives them
  SensitivityMap map;
  std::vector<Elasticity> elasticities;
};

// In this order: "sensitivity-time", "sensitivity-cap" (each input by factor), "latency-bandwidth-cap", "latency-bandwidth-keep".
std::vector<Chart> sensitivity_charts(const SensitivityReport& report);

// A page that opens without a network, in the look of render_report(). `data`: what it offers for download, as predict.json.
std::string render_sensitivity(const SensitivityReport& report, const nlohmann::json& data);

}  // namespace firkin
