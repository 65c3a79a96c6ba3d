#include "trace/span.h"

#include <algorithm>
#include <limits>

namespace firkin {
namespace {

double total_seconds(const std::vector<Period>& periods) {
  int64_t sum_ns = 0;
  for (const Period& period : periods) sum_ns += period.end_ns - period.start_ns;
  return seconds_of({0, sum_ns});
}

std::vector<Period> common_periods(const std::vector<Period>& a, const std::vector<Period>& b) {
  std::vector<Period> common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Period both{std::max(a[i].start_ns, b[j].start_ns), std::min(a[i].end_ns, b[j].end_ns)};
    if (both.start_ns < both.end_ns) common.push_back(both);
    a[i].end_ns < b[j].end_ns ? ++i : ++j;
  }
  return common;
}

}  // namespace

double seconds_of(const Period& period) {
  constexpr double kNanosecond = 1e-9;
  return static_cast<double>(period.end_ns - period.start_ns) * kNanosecond;
}

std::vector<Period> busy_periods(const std::vector<Span>& spans, Activity activity, int64_t least_gap_ns) {
  std::vector<Period> periods;
  for (const Span& span : spans) {
    if (span.activity == activity && span.start_ns < span.end_ns) periods.push_back({span.start_ns, span.end_ns});
  }
  std::ranges::sort(periods, {}, &Period::start_ns);
  std::vector<Period> merged;
  for (const Period& period : periods) {
    if (merged.empty() || period.start_ns - merged.back().end_ns > least_gap_ns) {
      merged.push_back(period);
    } else {
      merged.back().end_ns = std::max(merged.back().end_ns, period.end_ns);
    }
  }
  return merged;
}

Overlap overlap_of(const std::vector<Span>& spans) {
  const std::vector<Period> compute = busy_periods(spans, Activity::kOperator);
  const std::vector<Period> communication = busy_periods(spans, Activity::kCollective);
  return {total_seconds(compute), total_seconds(communication), total_seconds(common_periods(compute, communication))};
}

std::vector<Span> spans_between(const std::vector<Span>& spans, int64_t start_ns, int64_t end_ns) {
  std::vector<Span> within;
  for (const Span& span : spans) {
    if (span.start_ns >= start_ns && span.start_ns < end_ns) within.push_back(span);
  }
  return within;
}

std::vector<Span> spans_cut_to(const std::vector<Span>& spans, int64_t start_ns, int64_t end_ns) {
  std::vector<Span> within;
  for (const Span& span : spans) {
    if (span.start_ns >= end_ns || span.end_ns <= start_ns) continue;
    within.push_back(span);
    within.back().start_ns = std::max(span.start_ns, start_ns);
    within.back().end_ns = std::min(span.end_ns, end_ns);
  }
  return within;
}

int64_t first_start_ns(const std::vector<std::vector<Span>>& spans_by_rank) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& spans : spans_by_rank) {
    for (const Span& span : spans) first = std::min(first, span.start_ns);
  }
  return first;
}

}  // namespace firkin
