#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "firkin/base/error.h"

namespace firkin {

double learning_rate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  if (schedule.kind == ScheduleKind::kConstant) return schedule.peak;
  const int64_t way = std::max<int64_t>(1, schedule.steps - 1 - schedule.warmup_steps);
  const double gone = std::clamp(static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(way), 0.0, 1.0);
  const double height = schedule.kind == ScheduleKind::kLinear ? 1 - gone : (1 + std::cos(std::numbers::pi * gone)) / 2;
  return schedule.peak * (schedule.final_share + (1 - schedule.final_share) * height);
}

ScheduleKind schedule_from_name(std::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "cosine") return ScheduleKind::kCosine;
  throw InputError(fmt::format("unknown schedule '{}'; expected constant, linear or cosine", name));
}

}  // namespace firkin
