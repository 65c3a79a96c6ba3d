// The slowest of many ranks, from the measured times of a few.
#pragma once

#include <cstdint>
#include <vector>

namespace firkin {

struct Straggler {
  double expected_max_s = 0;      // of `ranks`, in a typical step
  double factor = 1;              // expected_max_s over the same of the measured ranks
  bool beyond_samples = false;    // more ranks than times: slower ones than any that was measured are likely, and this is too little
  double tail_factor = 1;         // then: the same with an exponential tail; otherwise `factor`
  double slowest_rank_ratio = 1;  // the median time of the rank that is slowest throughout, over that of the median rank
};

// E[max over P ranks] / E[max over the P0 measured ones], because a profile is the slowest of its ranks already.
//
// Steps that are slow for all ranks, ranks that are slow in all steps, and what is left are kept apart (fit_blocks): the first make no rank
// wait for another; each measured rank stands for P / P0 of the P, with its level, so one slow rank of eight is in the measured maximum as
// it will be in the predicted one; what is left differs from rank to rank and step to step. With F_i the distribution of rank i's times in
// a typical step, the maximum has the distribution prod F_i^(P / P0): its expectation is exact for the measured times. It is never above
// the largest of them, so for more ranks than times a second figure takes the largest tenth of what is left for the start of an exponential
// tail (peaks over a threshold u with mean excess s: u + s (ln N + 0.577) for N draws above u). The two are a range of what may be, and no
// confidence interval.
//
// times_by_rank: seconds of a rank's backward or step, [rank][step], every step on every rank; of a single rank, its times alone.
// Throws InputError when there is none, ranks differ in their number of steps, a time is not positive and finite, or ranks < 1.
Straggler expected_straggler(const std::vector<std::vector<double>>& times_by_rank, int64_t ranks);

}  // namespace firkin
