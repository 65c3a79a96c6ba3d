#include "measuring/step_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace firkin {

StepSchedule::StepSchedule(std::vector<StepCounts> settings, const StepBlocks& blocks)
    : settings_(std::move(settings)), blocks_(blocks), order_(settings_.size()), random_(blocks.seed.value_or(0)) {
  if (settings_.empty() || blocks.most < 1) {
    throw std::invalid_argument(fmt::format("{} blocks of {} settings; expected at least one", blocks.most, settings_.size()));
  }
  std::iota(order_.begin(), order_.end(), 0);
  if (blocks_.seed) std::ranges::shuffle(order_, random_);
}

std::optional<StepVisit> StepSchedule::next() const {
  if (is_over_) return std::nullopt;
  const size_t setting = order_[position_];
  return StepVisit{.setting = setting, .steps = settings_[setting], .block = block_, .ends_block = position_ + 1 == order_.size()};
}

void StepSchedule::tell(double elapsed_s, bool is_enough) {
  if (++position_ < order_.size()) return;
  position_ = 0;
  ++block_;
  const double with_another_s = elapsed_s * (block_ + 1) / block_;
  is_over_ = is_enough || block_ == blocks_.most || (block_ >= blocks_.fewest && with_another_s > blocks_.seconds);
  if (blocks_.seed) {
    std::ranges::shuffle(order_, random_);
  } else {
    std::ranges::reverse(order_);
  }
}

}  // namespace firkin
