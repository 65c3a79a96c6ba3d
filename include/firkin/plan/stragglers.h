// The slowest of many ranks, from the measured times of a few.
#pragma once

#include <cstdint>
#include <span>

namespace firkin {

struct Straggler {
  double expected_max_s = 0;    // of `ranks` draws from the samples
  double factor = 1;            // expected_max_s / the median
  bool beyond_samples = false;  // more draws than samples: slower ranks than any that was measured are likely, and this is too little
  double tail_factor = 1;       // then: the same with an exponential tail; otherwise `factor`
};

// E[max of `ranks` independent draws] from the samples' distribution, exactly: sum of x_(i) ((i / n)^P - ((i - 1) / n)^P) over the sorted
// samples. Never above the largest sample, so for more draws than samples a second figure takes the largest tenth of them for the start of
// an exponential tail (peaks over a threshold u with mean excess s: u + s (ln N + 0.577) for N draws above u). The two are a range of what
// may be, and no confidence interval.
// samples: seconds of a rank's backward or step, all ranks and steps together. Throws InputError when there is none, one is not positive
// and finite, or ranks < 1.
Straggler expected_straggler(std::span<const double> samples, int64_t ranks);

}  // namespace firkin
