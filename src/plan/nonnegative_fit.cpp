#include "nonnegative_fit.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace firkin {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Gaussian elimination with partial pivoting; nothing when the system is singular.
std::optional<std::vector<double>> solve(Matrix a, std::vector<double> b) {
  constexpr double kSingular = 1e-12;  // relative to the diagonal, which is 1
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    if (std::abs(a[pivot][k]) < kSingular) return std::nullopt;
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

}  // namespace

std::vector<double> fit_nonnegative_to_one(const std::vector<std::vector<double>>& equations) {
  const size_t term_count = equations.empty() ? 0 : equations[0].size();
  std::vector<double> scale(term_count, 0);  // of each term, so that the normal equations have a unit diagonal
  for (const auto& equation : equations) {
    for (size_t t = 0; t < term_count; ++t) scale[t] += equation[t] * equation[t];
  }
  for (double& s : scale) s = std::sqrt(s);

  std::vector<double> best(term_count, 0);
  double best_loss = std::numeric_limits<double>::infinity();
  for (uint32_t subset = 1; subset < uint32_t{1} << term_count; ++subset) {
    std::vector<size_t> used;
    for (size_t t = 0; t < term_count; ++t) {
      if ((subset >> t & 1) != 0) used.push_back(t);
    }
    Matrix normal(used.size(), std::vector<double>(used.size(), 0));
    std::vector<double> right(used.size(), 0);
    bool determined = true;
    for (size_t i = 0; i < used.size(); ++i) determined = determined && scale[used[i]] > 0;
    if (!determined) continue;
    for (const auto& equation : equations) {
      for (size_t i = 0; i < used.size(); ++i) {
        const double term = equation[used[i]] / scale[used[i]];
        right[i] += term;
        for (size_t j = 0; j < used.size(); ++j) normal[i][j] += term * equation[used[j]] / scale[used[j]];
      }
    }
    const auto x = solve(std::move(normal), std::move(right));
    if (!x) continue;
    std::vector<double> candidate(term_count, 0);
    bool allowed = true;
    for (size_t i = 0; i < used.size(); ++i) {
      candidate[used[i]] = (*x)[i] / scale[used[i]];
      allowed = allowed && (*x)[i] >= 0;
    }
    if (!allowed) continue;
    double loss = 0;
    for (const auto& equation : equations) {
      double sum = -1;
      for (size_t t = 0; t < term_count; ++t) sum += equation[t] * candidate[t];
      loss += sum * sum;
    }
    if (loss < best_loss) {
      best_loss = loss;
      best = std::move(candidate);
    }
  }
  return best;
}

}  // namespace firkin
