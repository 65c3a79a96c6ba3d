// Collectives over small values: gathers, maxima, one rank's text or decision.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// Every rank's values, by rank, on every rank: doubles or integers of 64 bits, as many from every rank. The all-reduce
// underneath is exact, because it adds one rank's value to zeros. Collective.
template <typename Value>
std::vector<std::vector<Value>> gather_rows(const ProcessGroup& group, const std::vector<Value>& values) {
  static_assert(sizeof(Value) == sizeof(double));
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor table = at::zeros({group.size, count}, std::is_integral_v<Value> ? at::kLong : at::kDouble);
  auto* const all = static_cast<Value*>(table.mutable_data_ptr());
  std::copy(values.begin(), values.end(), all + group.rank * count);
  all_reduce(group, table);
  std::vector<std::vector<Value>> rows;
  for (int rank = 0; rank < group.size; ++rank) rows.emplace_back(all + rank * count, all + (rank + 1) * count);
  return rows;
}

// The maximum and the sum over the ranks, the former element by element: for times, those of the slowest rank. Every
// rank gives as many values and gets the same result. Collective.
inline std::vector<double> max_over_ranks(const ProcessGroup& group, const std::vector<double>& values) {
  const std::vector<std::vector<double>> ranks = all_gather(group, values);
  std::vector<double> most = ranks[0];
  for (const std::vector<double>& rank : ranks) {
    for (size_t i = 0; i < rank.size(); ++i) most[i] = std::max(most[i], rank[i]);
  }
  return most;
}
inline double sum_over_ranks(const ProcessGroup& group, double value) {
  double sum = 0;
  for (const std::vector<double>& rank : all_gather(group, {value})) sum += rank[0];
  return sum;
}

// Rank 0's value, on every rank: what depends on a clock must be decided by one rank. Collective.
inline double of_rank_0(const ProcessGroup& group, double value) {
  return all_gather(group, {value})[0][0];
}

// The text of rank `root`, on every rank. Collective.
inline std::string text_of_rank(const ProcessGroup& group, const std::string& text, int root) {
  const auto lengths = all_gather(group, {static_cast<double>(text.size())});
  at::Tensor bytes = at::empty({static_cast<int64_t>(lengths[static_cast<size_t>(root)][0])}, at::kByte);
  if (bytes.numel() == 0) return "";
  if (group.rank == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  broadcast(group, {bytes}, root);
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

// The values of rank `root`, on every rank. Other ranks may give other values, and more or fewer. Collective.
template <typename Value>
std::vector<Value> list_of_rank(const ProcessGroup& group, const std::vector<Value>& values, int root) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const std::string bytes = text_of_rank(group, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)}, root);
  std::vector<Value> list(bytes.size() / sizeof(Value));
  if (!list.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

struct RankProblem {
  int rank = 0;
  std::string text;
};

// The first rank that has a problem, on every rank; none if no rank has one. Collective.
inline std::optional<RankProblem> first_problem(const ProcessGroup& group, const std::optional<std::string>& ours) {
  const auto ranks = all_gather(group, {ours ? 1.0 : 0.0});
  const auto first = std::ranges::find_if(ranks, [](const auto& rank) { return rank[0] != 0; });
  if (first == ranks.end()) return std::nullopt;
  const auto rank = static_cast<int>(first - ranks.begin());
  return RankProblem{rank, text_of_rank(group, ours.value_or(""), rank)};
}

// Calls `call` on rank 0 and returns its result there; nothing elsewhere. If it throws, every rank throws an
// InputError. Collective.
template <typename Call>
auto on_rank_0_alone(const ProcessGroup& group, const Call& call) {
  decltype(call()) found{};
  std::optional<std::string> problem;
  try {
    if (group.rank == 0) found = call();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (const auto first = first_problem(group, problem)) throw InputError(first->text);
  return found;
}

// Every rank's text, by rank, on every rank. Collective.
inline std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& text) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size; ++rank) texts.push_back(text_of_rank(group, text, rank));
  return texts;
}

}  // namespace firkin
