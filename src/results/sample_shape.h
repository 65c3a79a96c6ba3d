// What the medians of a result do not show: its rows say how many of their samples stand out, and between which two values they jump.
#pragma once

namespace firkin {

struct Results;  // results.h

// Sets `outliers` and `modes_s` of every row whose samples the result holds, and adds a note on each row with two modes. Samples in blocks
// are polished first (fit_blocks), so that a slow stretch of the machine is no setting's outlier. Once per result.
void mark_sample_shapes(Results& results);

}  // namespace firkin
