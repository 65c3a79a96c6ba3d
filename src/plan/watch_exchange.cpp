#include "watch_exchange.h"

#include <fmt/format.h>

namespace firkin {
namespace {

constexpr int kReadAtOnce = 8;  // ranks; a step of rank 0 must not wait for hundreds of answers

}  // namespace

WatchExchange::WatchExchange(int64_t number, int64_t rank, int64_t size) : number_(number), rank_(rank), size_(size) {}

std::string WatchExchange::key_of(int64_t rank, int64_t window) const {
  return fmt::format("firkin/watch/{}/{}/{}", number_, rank, window % 2);
}

std::pair<std::string, std::string> WatchExchange::end_window(const std::string& text) {
  const int64_t window = windows_++;
  if (rank_ == 0) {
    missed_ = wanted_ ? missed_ + 1 : 0;
    wanted_ = window;
    texts_.clear();
  }
  return {key_of(rank_, window), fmt::format("{} {}", window, text)};
}

bool WatchExchange::collect(const std::function<bool(const std::string&)>& has, const std::function<std::string(const std::string&)>& get) {
  for (int i = 0; wanted_ && i < kReadAtOnce; ++i) {
    const std::string key = key_of(static_cast<int64_t>(texts_.size()), *wanted_);
    if (!has(key)) return false;
    const std::string value = get(key);
    const size_t space = value.find(' ');
    if (value.substr(0, space) != std::to_string(*wanted_)) return false;
    texts_.push_back(value.substr(space + 1));
    if (static_cast<int64_t>(texts_.size()) < size_) continue;
    wanted_.reset();
    return true;
  }
  return false;
}

}  // namespace firkin
