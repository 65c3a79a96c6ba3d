#include "firkin/ddp/step_error.h"

#include <fmt/format.h>

namespace firkin {

StepError::StepError(StepFailure failure)
    : RuntimeError(fmt::format("step {} failed on rank {}: {}", failure.step, failure.rank, failure.reason)),
      failure_(std::move(failure)) {}

}  // namespace firkin
