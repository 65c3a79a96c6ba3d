// Series whose true median is known, for tests of coverage.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace firkin {

// Standard normal numbers, alike on every standard library (std::normal_distribution is not): Box and Muller's transformation.
class SyntheticNoise {
 public:
  explicit SyntheticNoise(uint64_t seed) : random_(seed) {}

  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }  // above 0, below 1

  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

  // n values with mean and median 0 and variance 1; neighbours have this correlation.
  std::vector<double> series(size_t n, double correlation) {
    std::vector<double> values(n);
    double value = normal();
    for (double& element : values) {
      element = value;
      value = correlation * value + std::sqrt(1 - correlation * correlation) * normal();
    }
    return values;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace firkin
