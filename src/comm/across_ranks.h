// What ranks must agree on, or know of each other.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

// Element by element, over the ranks: of times, those of the slowest. Every rank gives as many values, and gets the same result.
// Collective.
std::vector<double> max_over_ranks(const ProcessGroup& group, const std::vector<double>& values);
double sum_over_ranks(const ProcessGroup& group, double value);

// Rank 0's value, on every rank: what follows from a clock must be decided once. Collective.
double of_rank_0(const ProcessGroup& group, double value);

// Every rank's numbers of 64 bits, by rank, on every rank. Every rank gives as many. Collective.
std::vector<std::vector<uint64_t>> gather_hashes(const ProcessGroup& group, const std::vector<uint64_t>& hashes);

// The text of rank `root`, on every rank. Collective.
std::string text_of_rank(const ProcessGroup& group, const std::string& text, int root);

// The values of rank `root`, on every rank, which may have given other ones, and more or fewer. Collective.
template <typename Value>
std::vector<Value> list_of_rank(const ProcessGroup& group, const std::vector<Value>& values, int root) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const std::string bytes = text_of_rank(group, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)}, root);
  std::vector<Value> list(bytes.size() / sizeof(Value));
  std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

// Every rank's text, by rank, on every rank. Collective.
std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& text);

}  // namespace firkin
