// Gradients in a smaller type on the wire: fewer bytes against the time to convert them.
//
//   const CommCosts bf16 = compressed(costs, find_compression("bf16", 1e-10));
//   bf16.isolated(bytes);  // costs.isolated(bytes / 2) + 1e-10 * bytes
#pragma once

#include <string>

#include "firkin/plan/cost_curve.h"

namespace firkin {

inline constexpr const char* kNoHook = "none";
inline constexpr const char* kBf16Hook = "bf16";

struct Compression {
  std::string name;
  double wire_fraction = 1;          // bytes on the wire per byte of gradient (float32)
  double conversion_s_per_byte = 0;  // of the gradient, there and back
};

// "none" (converts nothing, whatever the conversion takes) or "bf16". Throws InputError, which lists the names, for any other, and when the
// conversion's time is negative or not finite.
Compression find_compression(const std::string& name, double conversion_s_per_byte);

// Both curves as functions of the gradient's bytes: a(x) becomes a(x * wire_fraction) + x * conversion_s_per_byte, as if the conversion
// occupied the link, which holds where it delays its own bucket and those behind it.
CommCosts compressed(const CommCosts& costs, const Compression& compression);

}  // namespace firkin
