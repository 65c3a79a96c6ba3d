// How the ranks of a watch tell rank 0 of their steps, through the store by which they met. Nobody waits.
//
//   const auto [key, value] = exchange.end_window(rank_steps_text(mine));  // on every rank
//   store->set(key, value);
//   if (exchange.collect(has, get)) summarize(...);                        // on rank 0, now and then
//
// Each rank uses two keys in turn, so that the store does not grow: a value begins with the number of its window, by
// which rank 0 tells it from an older one. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace firkin {

class WatchExchange {
 public:
  // number: which watch of the group this is, the same on every rank. size: how many ranks the group has.
  WatchExchange(int64_t number, int64_t rank, int64_t size);

  // The windows that have ended on this rank.
  int64_t windows() const { return windows_; }

  // Ends a window in which this rank saw `text`. Returns the key and the value to set in the store. Rank 0 then collects
  // this window, and gives up the one before if some rank has not told of it.
  std::pair<std::string, std::string> end_window(const std::string& text);

  // On rank 0: reads what ranks have told of the window, a few of them at a time. has(key): whether the store has it;
  // get(key): its value, which is called only then. Returns true once every rank has: texts() are those of the window.
  bool collect(const std::function<bool(const std::string&)>& has, const std::function<std::string(const std::string&)>& get);

  // Whether rank 0 still lacks the text of some rank, the first of which is rank texts().size().
  bool is_collecting() const { return wanted_.has_value(); }
  // How many windows in a row rank 0 has given up because a rank's text did not come.
  int64_t missed() const { return missed_; }

  // The texts of the window so far, by rank.
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::string key_of(int64_t rank, int64_t window) const;

  int64_t number_, rank_, size_;
  int64_t windows_ = 0, missed_ = 0;
  std::optional<int64_t> wanted_;  // the window that rank 0 is collecting
  std::vector<std::string> texts_;
};

}  // namespace firkin
