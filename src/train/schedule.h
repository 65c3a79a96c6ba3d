// The learning rate of every step: a warm-up, then a way down.
//
//   learning_rate({.kind = ScheduleKind::kCosine, .peak = 1e-3, .warmup_steps = 20, .steps = 500}, step);
#pragma once

#include <cstdint>
#include <string_view>

namespace firkin {

enum class ScheduleKind {
  kConstant,
  kLinear,
  kCosine,  // half a period (Loshchilov and Hutter 2017, SGDR, without restarts)
};

struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak = 1e-3;
  int64_t warmup_steps = 0;  // from peak / warmup_steps up to the peak, in equal parts
  int64_t steps = 1;         // of the whole training
  double final_share = 0.1;  // of the peak, in the last step
};

// Of step 0, 1, ...; beyond the last step it stays as there.
double learning_rate(const Schedule& schedule, int64_t step);

// "constant", "linear", "cosine". Throws InputError that lists them.
ScheduleKind schedule_from_name(std::string_view name);

}  // namespace firkin
