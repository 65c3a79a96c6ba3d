// The few rows of a product in which each value of each column still meets each value of every other column.
//
//   INSTANTIATE_TEST_SUITE_P(Pairs, Sharded, testing::ValuesIn(pairwise(models, optimizers, worlds)));
//   INSTANTIATE_TEST_SUITE_P(Full, Sharded, testing::Combine(testing::ValuesIn(models), ...));
#pragma once

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace firkin {

// Greedy: always the row that brings most pairs that no row before has.
template <typename... Values>
std::vector<std::tuple<Values...>> pairwise(const std::vector<Values>&... columns) {
  constexpr size_t kColumns = sizeof...(columns);
  using Row = std::array<size_t, kColumns>;  // indices
  std::vector<Row> product(1);
  for (size_t column = 0; const size_t size : {columns.size()...}) {
    std::vector<Row> longer;
    for (Row row : product) {
      for (row[column] = 0; row[column] < size; ++row[column]) longer.push_back(row);
    }
    product = std::move(longer);
    ++column;
  }
  std::set<std::array<size_t, 4>> met;  // column, value, other column, its value
  const auto unmet_in = [&met](const Row& row) {
    std::vector<std::array<size_t, 4>> unmet;
    for (size_t a = 0; a < kColumns; ++a) {
      for (size_t b = a + 1; b < kColumns; ++b) {
        if (!met.contains({a, row[a], b, row[b]})) unmet.push_back({a, row[a], b, row[b]});
      }
    }
    return unmet;
  };
  std::vector<std::tuple<Values...>> chosen;
  while (true) {
    const auto best = std::ranges::max_element(product, {}, [&](const Row& row) { return unmet_in(row).size(); });
    const auto unmet = unmet_in(*best);
    if (unmet.empty()) return chosen;
    met.insert(unmet.begin(), unmet.end());
    [&]<size_t... I>(std::index_sequence<I...>) {
      chosen.emplace_back(columns[(*best)[I]]...);
    }
    (std::index_sequence_for<Values...>{});
  }
}

}  // namespace firkin
