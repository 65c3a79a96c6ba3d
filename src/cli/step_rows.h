// What was measured of a configuration of `firkin bench step`, as rows of its result.
#pragma once

#include <vector>

#include "bench/step_bench.h"
#include "bench/step_memory.h"
#include "step_matrix.h"

namespace firkin::cli {

// memory: one per cell. `none` is the first cell: what a step takes longer than its is exposed communication.
StepConfiguration measured_configuration(const Configuration& configuration, const std::vector<Cell>& cells, const StepBenchResult& result,
                                         const std::vector<StepMemory>& memory, int world_size);

}  // namespace firkin::cli
