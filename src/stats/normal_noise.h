// Constants of the normal distribution.
#pragma once

namespace firkin {

// The standard deviation of normal noise, as a multiple of its median absolute deviation: 1 / 0.6745.
inline constexpr double kStdevPerMedianDeviation = 1.482602218505602;

}  // namespace firkin
