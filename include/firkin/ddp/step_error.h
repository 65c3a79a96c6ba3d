// A training step that failed on some rank, as every rank hears of it.
#pragma once

#include <cstdint>
#include <string>

#include "firkin/base/error.h"

namespace firkin {

struct StepFailure {
  int rank = 0;        // the first that failed
  int64_t step = 0;    // counted from 0; failed steps count
  std::string reason;  // on that rank

  bool operator==(const StepFailure&) const = default;
};

// Thrown from the same step on every rank: no rank has a gradient of it, and none may step its optimiser.
class StepError : public RuntimeError {
 public:
  explicit StepError(StepFailure failure);

  const StepFailure& failure() const { return failure_; }

 private:
  StepFailure failure_;
};

}  // namespace firkin
