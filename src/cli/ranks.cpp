#include "ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "bench/environment.h"
#include "comm/backends.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "firkin/base/units.h"
#include "firkin/comm/device.h"
#include "firkin/comm/rank_info.h"
#include "firkin/comm/run_ranks.h"

#include <torch/headeronly/version.h>

namespace firkin::cli {

namespace {

void check_rank_flags(const RankFlags& flags) {
  if (flags.ranks < 1 || flags.ranks > kMostLocalRanks) {
    throw InputError(fmt::format("--ranks {}: expected 1 to {}", flags.ranks, kMostLocalRanks));
  }
  constexpr double kLongestTimeout = 1e6;
  if (!(flags.timeout_s > 0) || flags.timeout_s > kLongestTimeout) {
    throw InputError(fmt::format("--timeout {}: expected more than 0, and at most 11 days", format_seconds(flags.timeout_s)));
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
    if (flags.link_world) throw InputError(fmt::format("--link-world {}: expected --link as well", *flags.link_world));
    return std::nullopt;
  }
  if (flags.link_world && *flags.link_world < ranks) {
    throw InputError(fmt::format("--link-world {}: expected at least the number of ranks, {}", *flags.link_world, ranks));
  }
  return parse_link(*flags.link, flags.link_world.value_or(ranks));
}

void add_rank_flags(CLI::App& app, RankFlags& flags) {
  flags.ranks_option = app.add_option("--ranks", flags.ranks, "ranks to start on this machine, without a launcher");
  flags.ranks_option->capture_default_str();
  app.add_option("--link", flags.link,
                 "model this link: 1gbit, or 200mbit,1ms (latency), or\nan allreduce.csv; collectives take as long (a\nreduce-scatter or "
                 "all-gather half an all-reduce)");
  const char* const group = "Ranks";
  app.add_option("--link-world", flags.link_world, "model the link for this many ranks (default: --ranks)")->group(group);
  add_time(app, "--timeout", flags.timeout_s, "limit for a collective to complete: 90s, 5m")->group(group);
  add_value(app, "--device", flags.device, "cpu, or cuda with one GPU of this machine per rank;\nauto: cuda if there is a GPU", group)
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  add_value(app, "--backend", flags.backend, "c10d backend for gradients; auto: nccl if each rank\nhas a GPU of its own, else gloo", group)
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  add_value(app, "--threads", flags.threads, "compute threads per rank; 0: OMP_NUM_THREADS, or an\nequal share", group);
}

}  // namespace

void add_run_flags(CLI::App& app, RunFlags& flags, const std::string& command) {
  add_common_flags(app, flags.common, command);
  add_rank_flags(app, flags.ranks);
}

bool uses_gpus(const RankFlags& flags) {
  return flags.device == "cuda" || (flags.device == "auto" && device_count() > 0);
}

int world_size(const RankFlags& flags) {
  const auto launched = rank_info_from_environment();
  return launched ? launched->world_size : flags.ranks;
}

int local_ranks(const RankFlags& flags) {
  const auto launched = rank_info_from_environment();
  return launched ? launched->local_world_size : flags.ranks;
}

bool writes_results() {
  const auto info = rank_info_from_environment();
  return !info || info->rank == 0;
}

int run_on_ranks(RunFlags& run, const std::function<void(const ProcessGroup&)>& body) {
  if (!run.common.folder) claim_output_folder(run.common, writes_results());
  const RankFlags& flags = run.ranks;
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

RunHead begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group) {
  RunHead run = start_run(command, common);
  add_ranks(group, run.environment);
  return run;
}

std::string difference_from(const RunHead& earlier, const CommonFlags& common, const RankFlags& ranks) {
  const Host here = this_host();
  const std::vector<Host>& hosts = earlier.environment.hosts;
  std::vector<std::tuple<std::string, std::string, std::string>> facts = {
      {"firkin", earlier.environment.firkin, FIRKIN_VERSION},
      {"libtorch", earlier.environment.libtorch.value_or(""), TORCH_VERSION},
      {"host", hosts.empty() ? "" : hosts[0].host, here.host},
      {"cpu", earlier.environment.cpu.value_or(""), here.cpu},
      {"world size", fmt::format("{}", earlier.environment.world_size.value_or(0)), fmt::format("{}", world_size(ranks))}};
  const nlohmann::json now = start_run("", common).settings;
  for (const auto& [name, value] : now.items()) {
    if (name == "memory-limit") continue;  // what fitted was measured in the same way
    if (!earlier.settings.is_object() || !earlier.settings.contains(name))
      return fmt::format("an older version of firkin, which did not record --{}", name);
    const nlohmann::json& before = earlier.settings[name];
    facts.emplace_back("--" + name, before.is_string() ? before.get<std::string>() : before.dump(), value.get<std::string>());
  }
  for (const auto& [name, before, after] : facts) {
    if (before != after)
      return fmt::format("{} {}, now {}", name, before.empty() ? "(not given)" : before, after.empty() ? "(not given)" : after);
  }
  return "";
}

}  // namespace firkin::cli
