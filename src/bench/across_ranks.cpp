#include "across_ranks.h"

#include <algorithm>

namespace firkin {

std::vector<double> slowest_rank(const ProcessGroup& group, const std::vector<double>& values) {
  const std::vector<std::vector<double>> ranks = all_gather(group, values);
  std::vector<double> slowest = ranks[0];
  for (const std::vector<double>& rank : ranks) {
    for (size_t i = 0; i < rank.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
  }
  return slowest;
}

double sum_over_ranks(const ProcessGroup& group, double value) {
  double sum = 0;
  for (const std::vector<double>& rank : all_gather(group, {value})) sum += rank[0];
  return sum;
}

double of_rank_0(const ProcessGroup& group, double value) {
  return all_gather(group, {value})[0][0];
}

}  // namespace firkin
