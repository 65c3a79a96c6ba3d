// Lower bounds of a(x) and g(x) that cost a table look-up and one multiplication, for searches that reject most sizes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "firkin/plan/cost_curve.h"

namespace firkin {

// The sizes are divided into 64 cells an octave; in each cell, each curve is bounded from below by a line: the curve
// itself, but where a measured point lies inside the cell. A cell is found from the bits of the size as a double: its exponent and the
// first six of its mantissa.
class CostBounds {
 public:
  struct Cell {
    double isolated_base = 0, isolated_slope = 0;
    double gap_base = 0, gap_slope = 0;
    double least_isolated_from_here = 0;  // over this cell and all larger sizes

    double isolated(double bytes) const { return isolated_base + isolated_slope * bytes; }
    double gap(double bytes) const { return gap_base + gap_slope * bytes; }
  };

  // Valid for sizes from 0 to `largest_bytes`.
  CostBounds(const CommCosts& costs, double largest_bytes);

  const Cell& operator()(double bytes) const { return cells_[index(bytes)]; }

 private:
  static constexpr int kCellBits = 6;
  static constexpr int kMantissaBits = 52;
  static constexpr uint64_t kFirst = std::bit_cast<uint64_t>(1.0) >> (kMantissaBits - kCellBits);

  // Cell 0 is for 0 bytes (and anything below 1), cell 1 starts at 1 byte.
  static size_t index(double bytes) {
    if (bytes < 1) return 0;
    return static_cast<size_t>((std::bit_cast<uint64_t>(bytes) >> (kMantissaBits - kCellBits)) - kFirst + 1);
  }
  static double cell_begin(size_t index) { return std::bit_cast<double>((index - 1 + kFirst) << (kMantissaBits - kCellBits)); }

  std::vector<Cell> cells_;
};

}  // namespace firkin
