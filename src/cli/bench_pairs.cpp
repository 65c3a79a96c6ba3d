// firkin bench pairs: which host has a slow link.
#include <numeric>

#include "bench/pairs_bench.h"
#include "firkin/base/progress.h"
#include "job.h"

namespace firkin::cli {
namespace {

// The first rank of each host; every rank if all are on one.
std::vector<int> ranks_to_pair(const std::vector<Host>& hosts, int size) {
  std::vector<int> ranks;
  for (const Host& host : hosts) ranks.push_back(static_cast<int>(host.ranks.at(0)));
  if (ranks.size() < 2) {
    ranks.resize(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::string host_of(const std::vector<Host>& hosts, int64_t rank) {
  for (const Host& host : hosts) {
    if (std::ranges::find(host.ranks, rank) != host.ranks.end()) return host.host;
  }
  return "";
}

void run_rank(const PairsFlags& flags, const ProcessGroup& group) {
  Results results = begin_run("bench-pairs", flags.common, group);
  const std::vector<Host>& hosts = results.run.environment.hosts;
  const int total = std::max(1, static_cast<int>(flags.seconds));  // progress counts seconds
  int shown = 0;
  Progress progress("measuring pairs: second", total, group.rank == 0);
  results.pairs = measure_pairs(group, {.ranks = ranks_to_pair(hosts, group.size),
                                        .bytes = flags.bytes,
                                        .seconds = flags.seconds,
                                        .on_progress = [&](const std::string& done, double seconds) {
                                          for (; shown < std::min(total, static_cast<int>(seconds)); ++shown) progress.advance(done);
                                        }});
  progress.finish();
  if (group.rank != 0) return;
  for (PairRow& pair : results.pairs) {
    pair.host = host_of(hosts, pair.rank);
    pair.other_host = host_of(hosts, pair.other);
    results.samples["seconds"].push_back(pair.samples_s);
  }
  results.links = links_of(results.pairs);
  finish_run(flags.common, results);
}

}  // namespace

int run(PairsFlags& flags) {
  const int ranks = world_size(flags.ranks);
  if (ranks < 2) throw InputError(fmt::format("--ranks {}: expected 2 or more, because one has no pair", ranks));
  return run_on_ranks(flags, [&flags](const ProcessGroup& group) { run_rank(flags, group); });
}

}  // namespace firkin::cli
