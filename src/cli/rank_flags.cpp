#include "rank_flags.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "comm/group_options.h"
#include "comm/torch_log.h"
#include "firkin/base/cpus.h"
#include "firkin/base/error.h"
#include "firkin/comm/device.h"
#include "firkin/comm/local_launch.h"
#include "firkin/comm/rank_info.h"

namespace firkin::cli {
namespace {

constexpr int kMostLocalRanks = 1024;

void check_rank_flags(const RankFlags& flags) {
  if (flags.ranks < 1 || flags.ranks > kMostLocalRanks) {
    throw InputError(fmt::format("--ranks {}: expected 1 to {}", flags.ranks, kMostLocalRanks));
  }
  constexpr double kLongestTimeout = 1e6;
  if (!(flags.timeout_s > 0) || flags.timeout_s > kLongestTimeout) {
    throw InputError(fmt::format("--timeout {}: expected seconds, more than 0", flags.timeout_s));
  }
  if (flags.threads < 0) throw InputError(fmt::format("--threads {}: expected 0 or more", flags.threads));
}

GroupOptions group_options(const RankFlags& flags, int local_rank, const std::optional<ModelledLink>& link) {
  return {.backend = flags.backend,
          .device = device_for_rank(flags.device, local_rank),
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000)),
          .link = link};
}

// ranks: as many as there are.
std::optional<ModelledLink> link_of(const RankFlags& flags, int ranks) {
  if (!flags.link) {
    if (flags.link_world) throw InputError(fmt::format("--link-world {}: expected --link with it", *flags.link_world));
    return std::nullopt;
  }
  if (flags.link_world && *flags.link_world < ranks) {
    throw InputError(fmt::format("--link-world {}: expected at least the number of ranks, {}", *flags.link_world, ranks));
  }
  return parse_link(*flags.link, flags.link_world.value_or(ranks));
}

}  // namespace

void add_rank_flags(CLI::App& app, RankFlags& flags) {
  flags.ranks_option = app.add_option("--ranks", flags.ranks, "processes to start here, without a launcher");
  flags.ranks_option->capture_default_str();
  app.add_option("--timeout", flags.timeout_s, "seconds after which a collective has failed")->capture_default_str();
  app.add_option("--device", flags.device,
                 "that models and gradients are on; cuda: a GPU of this\nmachine for each rank; auto: cuda where there is one")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--backend", flags.backend, "of c10d for gradients; auto: nccl where each rank has\na GPU of its own, otherwise gloo")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  app.add_option("--threads", flags.threads, "compute threads per rank; 0: OMP_NUM_THREADS, or an\nequal share")->capture_default_str();
  app.add_option("--link", flags.link, "collectives take the time of this link: 1gbit, or\n200mbit,1ms (latency), or an allreduce.csv");
  app.add_option("--link-world", flags.link_world, "ranks that --link is timed for (default: those here)");
}

bool uses_gpus(const RankFlags& flags) {
  return flags.device == "cuda" || (flags.device == "auto" && device_count() > 0);
}

bool writes_results() {
  const auto info = rank_info_from_environment();
  return !info || info->rank == 0;
}

int run_on_ranks(const RankFlags& flags, const std::function<void(const ProcessGroup&)>& body) {
  check_rank_flags(flags);
  const auto info = rank_info_from_environment();
  const std::optional<ModelledLink> link = link_of(flags, info ? info->world_size : flags.ranks);
  const GroupOptions options = group_options(flags, info ? info->local_rank : 0, link);
  choose_backend(options, *options.device);  // what is wrong with it is said once, and before any rank starts
  if (!info) return launch_local_ranks(flags.ranks, command_line());
  if (flags.ranks_option->count() > 0 && flags.ranks != info->world_size) {
    throw InputError(fmt::format("--ranks {}: a launcher started {} ranks; leave --ranks out", flags.ranks, info->world_size));
  }
  set_torch_log_level();
  at::set_num_threads(flags.threads > 0 ? flags.threads : threads_per_rank(info->local_world_size));
  body(connect(*info, options));
  return 0;
}

}  // namespace firkin::cli
