#include "bench/pairs_bench.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr int kFewestRounds = 2;  // the first also warms connections up
constexpr int kMostRounds = 100;

// What a rank sends, so that data of another rank would show.
int64_t mark_of(int rank) {
  return rank % 251;
}

// Seconds on this rank for an exchange with rank `peer`; without a peer it only takes part in the collective, which all
// ranks must call.
double exchange_s(const ProcessGroup& group, int peer, const at::Tensor& input, const at::Tensor& output) {
  std::vector<int64_t> lengths(static_cast<size_t>(group.size), 0);
  lengths[static_cast<size_t>(peer)] = input.numel();
  barrier(group);
  const auto started = std::chrono::steady_clock::now();
  wait(group, start_all_to_all(group, output, input, lengths, lengths), "an exchange between two ranks");
  return seconds_since(started);
}

}  // namespace

std::vector<std::pair<size_t, size_t>> ring_pairs(size_t count) {
  std::set<std::pair<size_t, size_t>> pairs;
  for (size_t place = 0; place < count; ++place) {
    for (const size_t step : {size_t{1}, size_t{2}}) {
      const size_t other = (place + step) % count;
      if (other != place) pairs.insert(std::minmax(place, other));
    }
  }
  return {pairs.begin(), pairs.end()};
}

std::vector<PairRow> measure_pairs(const ProcessGroup& group, const PairsBenchOptions& options) {
  const auto pairs = ring_pairs(options.ranks.size());
  const at::Tensor input = at::full({options.bytes}, mark_of(group.rank), at::kByte), output = at::empty_like(input);
  const auto started = std::chrono::steady_clock::now();
  std::vector<double> own_s;  // by round and pair; 0 where this rank is not of the pair
  int rounds = 0;
  for (bool goes_on = true; goes_on;) {
    for (const auto& [one, other] : pairs) {
      const std::pair<int, int> ranks = {options.ranks[one], options.ranks[other]};
      const bool is_mine = group.rank == ranks.first || group.rank == ranks.second;
      const int peer = !is_mine ? group.rank : group.rank == ranks.first ? ranks.second : ranks.first;
      const int64_t length = is_mine ? options.bytes : 1;  // a rank without a peer sends a byte to itself
      const double seconds = exchange_s(group, peer, input.narrow(0, 0, length), output.narrow(0, 0, length));
      own_s.push_back(is_mine ? seconds : 0);
      if (is_mine && rounds == 0 && !output.eq(mark_of(peer)).all().item<bool>()) {
        throw RuntimeError(fmt::format("rank {} did not receive what rank {} sent", group.rank, peer));
      }
    }
    ++rounds;
    const double spent_s = of_rank_0(group, seconds_since(started));
    const double round_s = spent_s / rounds;
    goes_on = rounds < kFewestRounds || (rounds < kMostRounds && spent_s + round_s <= options.seconds);
    if (options.on_progress) options.on_progress(fmt::format("round {}", rounds), spent_s);
  }
  const std::vector<double> slowest_s = max_over_ranks(group, own_s);
  std::vector<PairRow> rows;
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    PairRow& row = rows.emplace_back(PairRow{.rank = options.ranks[pairs[pair].first], .other = options.ranks[pairs[pair].second]});
    row.bytes = options.bytes;
    row.samples_s.reserve(static_cast<size_t>(rounds));
    for (size_t at = pair; at < slowest_s.size(); at += pairs.size()) row.samples_s.push_back(slowest_s[at]);
    row.seconds = std::ranges::min(row.samples_s);
    row.samples = rounds;
  }
  return rows;
}

}  // namespace firkin
