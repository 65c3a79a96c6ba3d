// Normal noise that is the same with every standard library, unlike std::normal_distribution. Internal to plan/.
#pragma once

#include <cmath>
#include <numbers>
#include <random>

namespace firkin {

// Uniform between 0 and 1, excluding both.
inline double random_uniform(std::mt19937_64& random) {
  constexpr int kDropped = 11;  // a double holds 53 of the 64 bits
  constexpr double kUnit = 0x1p-53;
  return (static_cast<double>(random() >> kDropped) + 0.5) * kUnit;
}

// Mean 0, standard deviation 1 (Box and Muller 1958).
inline double random_normal(std::mt19937_64& random) {
  const double radius = std::sqrt(-2 * std::log(random_uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * random_uniform(random));
}

}  // namespace firkin
