#include "ordered_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

namespace firkin {
namespace {

constexpr double kLeastImprovement = 1e-9;  // relative; less is rounding

std::ptrdiff_t offset(size_t k) {
  return static_cast<std::ptrdiff_t>(k);
}

// Bucket k and the one behind it as one.
std::vector<Bucket> with_merged(std::vector<Bucket> buckets, size_t k) {
  buckets[k].count += buckets[k + 1].count;
  buckets.erase(buckets.begin() + offset(k) + 1);
  return buckets;
}

// The tensor of which bucket k is a part, or the only one, in so many parts.
std::vector<Bucket> with_parts(std::vector<Bucket> buckets, size_t k, int64_t parts) {
  const int64_t tensor = buckets[k].first;
  const size_t first = k - static_cast<size_t>(buckets[k].part);
  const auto begin = buckets.begin() + offset(first);
  const auto at = buckets.erase(begin, begin + buckets[k].parts);
  std::vector<Bucket> split;
  for (int64_t part = 0; part < parts; ++part) split.push_back({tensor, 1, part, parts});
  buckets.insert(at, split.begin(), split.end());
  return buckets;
}

}  // namespace

OrderedSearch::OrderedSearch(const TensorProfile& profile, const CommCosts& costs, const OrderedSearchOptions& options)
    : profile_(profile),
      options_(options),
      bound_s_(pipeline_bound_s(profile, costs, options.pipeline)),
      run_(profile, costs, options.pipeline) {}

OrderedCandidate OrderedSearch::launched(Buckets buckets, bool try_ready_order) {
  OrderedCandidate candidate{std::move(buckets), {}, std::numeric_limits<double>::infinity()};
  run_.set_buckets(candidate.buckets);
  const auto consider = [&](const std::vector<int64_t>& order) {
    const double period = run_.period_s(order);
    if (!candidate.order.empty() && period >= candidate.period_s * (1 - kLeastImprovement)) return;
    candidate.order = order;
    candidate.period_s = period;
  };
  std::vector<int64_t> order(candidate.buckets.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  if (try_ready_order) consider(order);
  for (const bool patient : {false, true}) {
    run_.order_by_need(order, patient);
    if (order != candidate.order) consider(order);
  }
  return candidate;
}

bool OrderedSearch::allowed(const Buckets& buckets) const {
  return few_enough(buckets) && std::ranges::all_of(buckets, [&](const Bucket& bucket) { return small_enough(bucket); });
}

int64_t OrderedSearch::parts_for(int64_t tensor_bytes, int64_t cap_bytes) const {
  const int64_t wanted = (tensor_bytes + cap_bytes - 1) / std::max<int64_t>(1, cap_bytes);
  const int64_t most = std::min({options_.most_parts, tensor_bytes / std::max<int64_t>(1, options_.smallest_part_bytes), kMostParts});
  return std::max<int64_t>(1, std::min(wanted, most));
}

bool OrderedSearch::accept(Buckets buckets, OrderedCandidate& candidate) {
  if (effort_left_ <= 0 || !few_enough(buckets)) return false;
  effort_left_ -= static_cast<int64_t>(buckets.size() + profile_.bytes.size());
  OrderedCandidate other = launched(std::move(buckets), std::ranges::is_sorted(candidate.order));
  if (other.period_s >= candidate.period_s * (1 - kLeastImprovement)) return false;
  candidate = std::move(other);
  return true;
}

bool OrderedSearch::merge_once(OrderedCandidate& candidate, size_t k) {
  const Buckets& buckets = candidate.buckets;
  if (k + 1 >= buckets.size() || buckets[k].parts > 1 || buckets[k + 1].parts > 1) return false;
  Buckets merged = with_merged(buckets, k);
  return small_enough(merged[k]) && accept(std::move(merged), candidate);
}

// Moves 1, 2, 4, ... tensors over the boundary behind bucket k, to either side.
bool OrderedSearch::shift_once(OrderedCandidate& candidate, size_t k) {
  bool moved = false;
  for (int64_t count = 1; k + 1 < candidate.buckets.size(); count *= 2) {
    const Bucket left = candidate.buckets[k], right = candidate.buckets[k + 1];
    if (left.parts > 1 || right.parts > 1 || count >= std::max(left.count, right.count)) break;
    for (const int64_t shift : {count, -count}) {
      Buckets shifted = candidate.buckets;
      shifted[k].count -= shift;
      shifted[k + 1].first -= shift;
      shifted[k + 1].count += shift;
      if (shifted[k].count < 1 || shifted[k + 1].count < 1 || !small_enough(shifted[k]) || !small_enough(shifted[k + 1])) continue;
      if (accept(std::move(shifted), candidate)) moved = true;
    }
  }
  return moved;
}

bool OrderedSearch::cut_once(OrderedCandidate& candidate, size_t k) {
  constexpr int64_t kMostCuts = 8;
  bool moved = false;
  const int64_t stride = std::max<int64_t>(1, candidate.buckets[k].count / kMostCuts);
  for (int64_t left = stride; left < candidate.buckets[k].count; left += stride) {
    Buckets cut = candidate.buckets;
    const Bucket right = {.first = cut[k].first + left, .count = cut[k].count - left};
    cut[k].count = left;
    cut.insert(cut.begin() + offset(k) + 1, right);
    if (accept(std::move(cut), candidate)) moved = true;
  }
  return moved;
}

bool OrderedSearch::split_once(OrderedCandidate& candidate, size_t k) {
  const Bucket bucket = candidate.buckets[k];
  if (bucket.count > 1 || bucket.part > 0) return false;
  const int64_t most = parts_for(profile_.bytes[static_cast<size_t>(bucket.first)], 1);
  for (const int64_t parts : {bucket.parts / 2, bucket.parts - 1, bucket.parts + 1, bucket.parts * 2, bucket.parts * 4}) {
    if (parts < 1 || parts > most || parts == bucket.parts) continue;
    if (accept(with_parts(candidate.buckets, k, parts), candidate)) return true;
  }
  return false;
}

// One pass over all buckets; true when a move was made.
bool OrderedSearch::improve_buckets(OrderedCandidate& candidate) {
  bool moved = false;
  for (size_t k = 0; k < candidate.buckets.size(); ++k) {
    if (merge_once(candidate, k)) moved = true;
    if (shift_once(candidate, k)) moved = true;
    if (cut_once(candidate, k)) moved = true;
    if (split_once(candidate, k)) moved = true;
  }
  return moved;
}

// Moves each bucket by a few places in the launch order.
bool OrderedSearch::improve_order(OrderedCandidate& candidate) {
  constexpr int64_t kFarthest = 6;
  bool moved = false;
  run_.set_buckets(candidate.buckets);
  std::vector<int64_t>& order = candidate.order;
  const auto count = static_cast<int64_t>(order.size());
  const auto move = [&](int64_t from, int64_t to) {
    const auto at = order.begin();
    if (from < to) std::rotate(at + from, at + from + 1, at + to + 1);
    if (to < from) std::rotate(at + to, at + from, at + from + 1);
  };
  for (int64_t from = 0; from < count; ++from) {
    for (int64_t to = std::max<int64_t>(0, from - kFarthest); to <= std::min(count - 1, from + kFarthest); ++to) {
      if (to == from || effort_left_ <= 0) continue;
      effort_left_ -= count;
      move(from, to);
      const double period = run_.period_s(order);
      if (period < candidate.period_s * (1 - kLeastImprovement)) {
        candidate.period_s = period;
        moved = true;
      } else {
        move(to, from);
      }
    }
  }
  return moved;
}

void OrderedSearch::merge_within_tolerance(OrderedCandidate& candidate) {
  const double limit = candidate.period_s * (1 + options_.tolerance);
  for (size_t k = 0; k < candidate.buckets.size() && effort_left_ > 0;) {
    const Bucket& bucket = candidate.buckets[k];
    Buckets fewer;
    if (bucket.parts > 1) {
      if (bucket.part == 0) fewer = with_parts(candidate.buckets, k, bucket.parts - 1);
    } else if (k + 1 < candidate.buckets.size() && candidate.buckets[k + 1].parts == 1) {
      fewer = with_merged(candidate.buckets, k);
      if (!small_enough(fewer[k])) fewer.clear();
    }
    effort_left_ -= static_cast<int64_t>(candidate.buckets.size() + profile_.bytes.size());
    OrderedCandidate other = fewer.empty() ? OrderedCandidate() : launched(std::move(fewer), std::ranges::is_sorted(candidate.order));
    if (!other.buckets.empty() && other.period_s <= limit) {
      candidate = std::move(other);
    } else {
      ++k;
    }
  }
}

void OrderedSearch::improve(OrderedCandidate& candidate, int64_t effort) {
  effort_left_ = effort;
  while (!at_bound(candidate) && effort_left_ > 0 && improve_buckets(candidate)) {
  }
  effort_left_ = std::max<int64_t>(effort_left_, effort / 4);
  merge_within_tolerance(candidate);
  effort_left_ = std::max<int64_t>(effort_left_, effort / 4);
  while (!at_bound(candidate) && effort_left_ > 0 && improve_order(candidate)) {
  }
}

}  // namespace firkin
