// Runs a visit that an AllReduceSchedule asks for; the caller times its samples.
#pragma once

#include <chrono>
#include <vector>

#include "comm/across_ranks.h"
#include "measuring/allreduce_schedule.h"

namespace firkin {

// Returns the times of the visit's samples for AllReduceSchedule::tell(): those of the slowest rank, on every rank.
// Collective. isolated(), queued(): run one sample and return its seconds on this rank. elapsed(): seconds since the
// measurement began; called after the samples.
template <class Isolated, class Queued, class Elapsed>
std::vector<double> time_visit(const ProcessGroup& group, const AllReduceVisit& visit, Isolated isolated, Queued queued, Elapsed elapsed) {
  std::vector<double> seconds;
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < visit.isolated; ++i) seconds.push_back(isolated());
  const double isolated_s = seconds_since(started);
  for (int i = 0; i < visit.queued; ++i) seconds.push_back(queued());
  const double queued_s = seconds_since(started) - isolated_s;
  seconds.insert(seconds.end(), {isolated_s, queued_s, elapsed()});
  return max_over_ranks(group, seconds);
}

}  // namespace firkin
