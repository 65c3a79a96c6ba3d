// Heat maps: how the best cap and the backward time move with their inputs.
#pragma once

#include <vector>

#include "firkin/plan/sensitivity.h"
#include "report/charts.h"

namespace firkin {

struct SensitivityReport {
  std::vector<SensitivityPoint> points;  // by influence, each by rising factor; as sensitivity_table() gives them
  SensitivityMap map;
};

// In this order: "sensitivity-time", "sensitivity-cap" (each input by factor), "latency-bandwidth-cap", "latency-bandwidth-keep".
std::vector<Chart> sensitivity_charts(const SensitivityReport& report);

}  // namespace firkin
