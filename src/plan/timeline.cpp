#include "firkin/plan/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "contention.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

// Without contention: the formula, channel by channel.
void run_without_contention(const std::vector<Launch>& launches, int64_t channels, Timeline& timeline) {
  std::vector<double> channel_free(static_cast<size_t>(channels), -std::numeric_limits<double>::infinity());
  for (size_t k = 0; k < launches.size(); ++k) {
    const auto channel = std::min_element(channel_free.begin(), channel_free.end());
    BucketSpan& span = timeline.buckets[k];
    span.launch_s = launches[k].host_s;
    span.channel = channel - channel_free.begin();
    span.start_s = std::max(launches[k].host_s, *channel);
    span.end_s = std::max(launches[k].host_s + launches[k].isolated_s, *channel + launches[k].gap_s);
    *channel = span.end_s;
  }
}

}  // namespace

void check_options(const SimulationOptions& options) {
  const auto check = [](const char* what, double value, double least) {
    if (!std::isfinite(value) || value < least) throw InputError(fmt::format("{} is {}; expected at least {}", what, value, least));
  };
  constexpr int64_t kMostChannels = 1024;
  if (options.channels < 1 || options.channels > kMostChannels) {
    throw InputError(fmt::format("the number of channels is {}; expected 1 to {}", options.channels, kMostChannels));
  }
  check("the overhead per call", options.overhead_s, 0);
  check("the copy time per byte", options.copy_s_per_byte, 0);
  check("the slowdown of computation", options.compute_slowdown, 1);
  check("the slowdown of communication", options.comm_slowdown, 1);
}

Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options) {
  check_options(options);
  Timeline timeline;
  timeline.buckets.reserve(plan.buckets.size());
  const std::vector<int64_t> bytes_of = bucket_bytes(plan, profile.bytes);
  std::vector<int64_t> bytes_before(profile.bytes.size() + 1, 0);  // of the tensors before tensor i
  for (size_t i = 0; i < profile.bytes.size(); ++i) bytes_before[i + 1] = bytes_before[i] + profile.bytes[i];

  std::vector<Launch> launches;
  launches.reserve(plan.buckets.size());
  size_t last_needed = 0;  // launches keep their order: one whose bucket is not ready holds up those behind it
  for (size_t position = 0; position < plan.buckets.size(); ++position) {
    const size_t k = plan.launch_order.empty() ? position : static_cast<size_t>(plan.launch_order[position]);
    last_needed = std::max(last_needed, k);
    const auto tensors_until = [&](size_t bucket) { return static_cast<size_t>(plan.buckets[bucket].first + plan.buckets[bucket].count); };
    const auto ready_s = [&](size_t bucket) { return profile.ready_s[tensors_until(bucket) - 1]; };
    // A split tensor is copied as a whole before its first part goes.
    const double copies_s = options.copy_s_per_byte * static_cast<double>(bytes_before[tensors_until(last_needed)]);
    const double calls_s = options.overhead_s * static_cast<double>(position + 1);
    BucketSpan span{.bytes = bytes_of[k], .ready_s = ready_s(k), .bucket = static_cast<int64_t>(k)};
    const auto bytes = static_cast<double>(span.bytes);
    launches.push_back({ready_s(last_needed) + copies_s + calls_s, costs.isolated(bytes), costs.gap(bytes)});
    timeline.buckets.push_back(span);
  }

  double host_total_s = profile.backward_s + options.overhead_s * static_cast<double>(plan.buckets.size()) +
                        options.copy_s_per_byte * static_cast<double>(bytes_before.back());
  if (!launches.empty()) host_total_s = std::max(host_total_s, launches.back().host_s);  // they may differ by rounding
  if (options.compute_slowdown == 1 && options.comm_slowdown == 1) {
    timeline.compute_end_s = host_total_s;
    run_without_contention(launches, options.channels, timeline);
  } else {
    run_fluid(launches, host_total_s, options, timeline);
  }
  timeline.end_s = timeline.compute_end_s;
  for (const BucketSpan& span : timeline.buckets) timeline.end_s = std::max(timeline.end_s, span.end_s);
  timeline.exposed_s = timeline.end_s - profile.backward_s;
  return timeline;
}

}  // namespace firkin
