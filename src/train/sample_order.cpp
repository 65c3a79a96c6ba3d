#include "train/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int kFeistelRounds = 6;

// One of `size` numbers, to another: a permutation for each key.
uint64_t shuffled(uint64_t value, uint64_t size, uint64_t key) {
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kFeistelRounds; ++round) {
      const uint64_t next = left ^ (mixed(mixed(key + round) ^ right) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= size);
  return value;
}

}  // namespace

uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

int64_t windows_per_pass(const SampleOrder& order) {
  if (order.sequence < 1) throw InputError(fmt::format("a sequence of {} tokens; expected at least 1", order.sequence));
  const int64_t windows = (order.tokens - 1) / order.sequence;
  if (windows < 1) {
    throw InputError(fmt::format("{} tokens to train on; expected more than a sequence of {}", order.tokens, order.sequence));
  }
  return windows;
}

int64_t window_start(const SampleOrder& order, int64_t sample) {
  const int64_t windows = windows_per_pass(order);
  const auto pass = static_cast<uint64_t>(sample / windows);
  const uint64_t key = mixed(mixed(order.seed) ^ pass);
  const auto window = static_cast<int64_t>(shuffled(static_cast<uint64_t>(sample % windows), static_cast<uint64_t>(windows), key));
  const int64_t left_over = order.tokens - 1 - windows * order.sequence;
  const auto moved = static_cast<int64_t>(key % static_cast<uint64_t>(left_over + 1));
  return order.first + moved + window * order.sequence;
}

}  // namespace firkin
