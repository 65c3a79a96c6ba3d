#include "plan_trial.h"

#include <array>

#include "firkin/stats/block_fit.h"
#include "firkin/stats/summary.h"

namespace firkin {

PlanTrial::Verdict PlanTrial::judge(std::span<const double> period_s) const {
  std::array<std::vector<double>, 2> block_s;  // old, new
  for (int64_t block = 0; block < blocks_; ++block) {
    const auto timed = period_s.subspan(static_cast<size_t>(block * steps_of_block_ + 1), static_cast<size_t>(steps_of_block_ - 1));
    block_s[uses_new(block) ? 1 : 0].push_back(median(timed));
  }
  const BlockFit fit = fit_blocks({block_s[0], block_s[1]});
  return {.new_to_old = paired_ratio(block_s[1], block_s[0]), .old_s = fit[0].median, .new_s = fit[1].median};
}

}  // namespace firkin
