// Where to measure next: a time budget is best spent on the points of a curve that are known least well.
//
//   while (seconds_left > 0) {
//     const auto points = widest_points(samples, seconds_left);
//     if (points.empty()) break;
//     for (const size_t point : points) samples[point].push_back(measure(point));
//   }
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace firkin {

// Width of the 95 % interval of the median (see series_interval), divided by the median. Infinite for fewer than kFewestSamples.
// samples: positive, in the order measured.
double relative_width(std::span<const double> samples);

// The third of the points, rounded up, with the largest relative_width, widest first: several, so that a round still meets all of them in
// the same stretch of time.
//
// samples: [point][sample], seconds that the sample took; each point has at least one. Points whose median exceeds `seconds_left` are left
// out, and nothing is returned when that leaves none. Equal widths go in the order of the points.
std::vector<size_t> widest_points(const std::vector<std::vector<double>>& samples, double seconds_left);

}  // namespace firkin
