#include "measuring/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "firkin/stats/estimates.h"

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

std::vector<std::vector<double>> series_of(std::span<const SettingSteps> settings) {
  std::vector<std::vector<double>> step_s;
  for (const SettingSteps& setting : settings) step_s.push_back(setting.step_s);
  return step_s;
}

void add_bare_backward(const std::vector<double>& hooked_s, const std::vector<double>& bare_s, MeasuredProfile& profile) {
  const double hooked_to_bare = paired_ratio(hooked_s, bare_s).ratio;
  profile.hook_perturbation = hooked_to_bare - 1;
  // From the ratio of pairs, because the medians of hooked_s and bare_s may come from different moments.
  profile.bare_backward_s = median(hooked_s) / hooked_to_bare;
}

std::vector<int64_t> order_of_times(const std::vector<double>& times) {
  std::vector<int64_t> order(times.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&times](int64_t i) { return std::pair(times[static_cast<size_t>(i)], i); });
  return order;
}

TensorProfile profile_in_order(const std::vector<std::string>& names, const std::vector<int64_t>& bytes, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s) {
  TensorProfile profile;
  double latest = 0;
  for (const int64_t parameter : order) {
    const auto index = static_cast<size_t>(parameter);
    latest = std::max(latest, ready_s[index]);
    profile.names.push_back(names[index]);
    profile.bytes.push_back(bytes[index]);
    profile.ready_s.push_back(latest);
  }
  profile.backward_s = std::max(latest, backward_s);
  return profile;
}

MeasuredProfile profile_of_steps(const std::vector<std::string>& names, const std::vector<int64_t>& bytes,
                                 const std::vector<int64_t>& order, const std::vector<std::vector<double>>& hooked_s,
                                 const std::vector<double>& bare_s) {
  const std::vector<double> medians = column_medians(hooked_s);
  MeasuredProfile profile;
  profile.tensors = profile_in_order(names, bytes, order, {medians.begin() + 1, medians.end()}, medians[0]);
  std::vector<double> backward_s;
  for (const std::vector<double>& step : hooked_s) backward_s.push_back(step[0]);
  add_bare_backward(backward_s, bare_s, profile);
  return profile;
}

}  // namespace firkin
