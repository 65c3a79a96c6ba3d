#include "firkin/plan/analytic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "firkin/base/error.h"

namespace firkin {
namespace {

void check(const EvenWorkload& workload, bool needs_backward) {
  const auto positive = [](const char* what, double value) {
    if (!std::isfinite(value) || value <= 0)
      throw InputError(fmt::format("the analytic model has {} {}; expected more than 0", what, value));
  };
  positive("total bytes", workload.total_bytes);
  positive("an overhead of", workload.overhead_s);
  positive("a bandwidth of", workload.bandwidth_bytes_s);
  if (needs_backward) positive("a backward pass of", workload.backward_s);
}

}  // namespace

double balanced_exposed_s(const EvenWorkload& workload, double bucket_count) {
  check(workload, false);
  return workload.total_bytes / (bucket_count * workload.bandwidth_bytes_s) + bucket_count * workload.overhead_s;
}

EqualBuckets best_balanced_buckets(const EvenWorkload& workload) {
  check(workload, false);
  const auto [s, unused, o, w] = workload;
  return {.count = std::sqrt(s / (o * w)), .bucket_bytes = std::sqrt(s * o * w), .exposed_s = 2 * std::sqrt(s * o / w)};
}

double even_backward_s(const EvenWorkload& workload, double bucket_bytes) {
  check(workload, true);
  const auto [total, backward, overhead, bandwidth] = workload;
  const double rate = total / backward;
  const double waiting = backward + overhead + bucket_bytes / bandwidth;
  const double never_idle = bucket_bytes / rate + total / bucket_bytes * overhead + total / bandwidth;
  return std::max(waiting, never_idle);
}

EqualBuckets best_even_buckets(const EvenWorkload& workload) {
  check(workload, true);
  const auto [total, backward, overhead, bandwidth] = workload;
  const double rate = total / backward;
  double bytes = std::min(total, std::sqrt(total * overhead * rate));
  if (bandwidth > rate) bytes = std::min(bytes, overhead / (1 / rate - 1 / bandwidth));
  return {.count = total / bytes, .bucket_bytes = bytes, .exposed_s = even_backward_s(workload, bytes) - backward};
}

GrowingBuckets best_growing_buckets(const EvenWorkload& workload) {
  check(workload, true);
  const auto [total, backward, overhead, bandwidth] = workload;
  const double rate = total / backward;
  const double growth = rate / bandwidth;
  if (growth < 1) {
    throw InputError(fmt::format("computation takes longer than communication (by {:.3g}); expected the contrary", 1 / growth));
  }
  GrowingBuckets best = {.bucket_bytes = {}, .backward_s = std::numeric_limits<double>::infinity()};
  double powers = 0;   // 1 + q + ... + q^(n-1): what the first bucket contributes to the total
  double offsets = 0;  // what the overheads contribute
  double power = 1, offset = 0;
  for (double n = 1;; ++n, power *= growth, offset = growth * offset + rate * overhead) {
    powers += power;
    offsets += offset;
    const double first = (total - offsets) / powers;
    if (first <= 0) return best;
    const double end_s = first / rate + n * overhead + total / bandwidth;
    if (end_s >= best.backward_s) return best;
    best = {.bucket_bytes = {first}, .backward_s = end_s};
    while (static_cast<double>(best.bucket_bytes.size()) < n) {
      best.bucket_bytes.push_back(rate * (overhead + best.bucket_bytes.back() / bandwidth));
    }
  }
}

}  // namespace firkin
