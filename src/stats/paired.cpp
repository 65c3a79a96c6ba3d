#include "firkin/stats/paired.h"

#include <cmath>
#include <stdexcept>
#include <vector>

#include "firkin/stats/summary.h"

namespace firkin {

PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, uint64_t seed, double confidence, int resamples) {
  if (a.size() != reference.size()) throw std::invalid_argument("a paired ratio of samples from different numbers of blocks");
  std::vector<double> ratios;
  std::vector<double> logarithms;
  for (size_t block = 0; block < a.size(); ++block) {
    if (!(a[block] > 0 && reference[block] > 0)) throw std::invalid_argument("a paired ratio of a value that is not positive");
    ratios.push_back(a[block] / reference[block]);
    logarithms.push_back(std::log(ratios.back()));
  }
  return {.ratio = std::exp(median(logarithms)), .interval = bootstrap_median(ratios, seed, confidence, resamples)};
}

}  // namespace firkin
