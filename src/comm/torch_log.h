// What LibTorch's own log writes to standard error, in programs whose ranks Firkin runs.
#pragma once

namespace firkin {

// As TORCH_CPP_LOG_LEVEL says, where it is set; by itself LibTorch reads that only under Python. Otherwise errors alone: when a rank has
// gone, c10d warns on every other one, with backtraces between which the line that names the rank is hard to find.
void set_torch_log_level();

}  // namespace firkin
