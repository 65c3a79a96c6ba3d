#include "chaos_meeting.h"

#include <fmt/format.h>

#include <utility>

namespace firkin {

using Clock = std::chrono::steady_clock;

ChaosMeeting::ChaosMeeting(int ranks, std::chrono::milliseconds limit)
    : ranks_(ranks), limit_(limit), reports_(static_cast<size_t>(ranks)), last_sign_of_life_(Clock::now()) {}

void ChaosMeeting::meet(int rank, ChaosReport report) {
  std::unique_lock lock(mutex_);
  if (!failures_.empty()) throw ChaosStop();
  const std::string where = report.where;
  last_sign_of_life_ = Clock::now();
  reports_[static_cast<size_t>(rank)] = std::move(report);
  if (++present_ == ranks_) {
    if (const auto wrong = find_disagreement(reports_)) fail_locked(*wrong);
    reports_.assign(reports_.size(), std::nullopt);
    present_ = 0;
    ++meetings_;
    changed_.notify_all();
  } else {
    const int64_t meeting = meetings_;
    const auto is_over = [&] { return meetings_ > meeting || !failures_.empty(); };
    if (!changed_.wait_for(lock, limit_, is_over)) {
      fail_locked(fmt::format("rank {} waited in vain for the others after {}; {} of {} came", rank, where, present_, ranks_));
    }
  }
  if (!failures_.empty()) throw ChaosStop();
}

void ChaosMeeting::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  fail_locked(what);
}

void ChaosMeeting::fail_locked(const std::string& what) {
  failures_ += (failures_.empty() ? "" : "\n    then ") + what;
  changed_.notify_all();
}

void ChaosMeeting::leave() {
  const std::lock_guard lock(mutex_);
  ++left_;
  last_sign_of_life_ = Clock::now();
  changed_.notify_all();
}

bool ChaosMeeting::wait_until_all_left() {
  std::unique_lock lock(mutex_);
  const auto all_left = [this] { return left_ == ranks_; };
  while (!all_left()) {
    const auto deadline = last_sign_of_life_ + 2 * limit_;
    if (changed_.wait_until(lock, deadline, all_left)) break;
    if (Clock::now() < last_sign_of_life_ + 2 * limit_) continue;  // somebody showed up meanwhile
    fail_locked(fmt::format("{} of {} ranks hang, {} of them in a meeting", ranks_ - left_, ranks_, present_));
    return false;
  }
  return true;
}

std::string ChaosMeeting::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

}  // namespace firkin
