#include "firkin/plan/optimal_plan.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "exact_search.h"
#include "firkin/base/error.h"
#include "local_search.h"

namespace firkin {
namespace {

void check_search(const SearchOptions& options, const TensorProfile& profile) {
  if (!std::isfinite(options.tolerance) || options.tolerance < 0) {
    throw InputError(fmt::format("the tolerance is {}; expected at least 0", options.tolerance));
  }
  if (options.largest_bucket_bytes <= 0) {
    throw InputError(fmt::format("the largest bucket is {} bytes; expected at least 1", options.largest_bucket_bytes));
  }
  const auto tensor_count = static_cast<int64_t>(profile.bytes.size());
  if (options.pinned_first_count < 0 || options.pinned_first_count > tensor_count) {
    throw InputError(fmt::format("the first bucket is pinned to {} tensors; expected 0 to {}", options.pinned_first_count, tensor_count));
  }
  const int64_t pinned_bytes = std::accumulate(profile.bytes.begin(), profile.bytes.begin() + options.pinned_first_count, int64_t{0});
  if (options.pinned_first_count > 1 && pinned_bytes > options.largest_bucket_bytes) {
    throw InputError(fmt::format("the first bucket is pinned to {} tensors of {} bytes; expected at most the largest bucket's {}",
                                 options.pinned_first_count, pinned_bytes, options.largest_bucket_bytes));
  }
  check_options(options.simulation);
}

}  // namespace

PlannedBuckets find_optimal_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  check_profile(profile);
  check_search(options, profile);
  const SimulationOptions& simulation = options.simulation;
  PlannedBuckets result;
  result.exact = simulation.channels == 1 && simulation.compute_slowdown == 1 && simulation.comm_slowdown == 1;
  result.plan = result.exact ? find_exact_plan(profile, costs, options) : find_plan_locally(profile, costs, options);
  result.timeline = simulate(profile, result.plan, costs, simulation);
  return result;
}

}  // namespace firkin
