#include "ready_counter.h"

#include <algorithm>

namespace firkin {

void ReadyCounter::begin_step() {
  std::ranges::fill(received_, 0);
  observed_order_.clear();
}

ReadyCounter::Arrival ReadyCounter::count(size_t parameter) {
  const int64_t received = ++received_[parameter];
  if (!has_learned_) {
    if (received > 1) std::erase(observed_order_, static_cast<int64_t>(parameter));
    observed_order_.push_back(static_cast<int64_t>(parameter));
    return Arrival::kIncomplete;
  }
  if (expected_[parameter] == kUnknown || received < expected_[parameter]) return Arrival::kIncomplete;
  if (received == expected_[parameter]) return Arrival::kComplete;
  expected_[parameter] = received;
  return Arrival::kTooMany;
}

std::vector<int64_t> ReadyCounter::observed_order() const {
  std::vector<int64_t> order = observed_order_;
  for (size_t i = 0; i < received_.size(); ++i) {
    if (received_[i] == 0) order.push_back(static_cast<int64_t>(i));
  }
  return order;
}

void ReadyCounter::learn(const std::vector<int64_t>& received) {
  has_learned_ = true;
  if (knows_all_) return;
  for (size_t i = 0; i < expected_.size(); ++i) {
    if (expected_[i] == kUnknown) expected_[i] = received[i];
  }
  knows_all_ = std::ranges::find(expected_, kUnknown) == expected_.end();
}

}  // namespace firkin
