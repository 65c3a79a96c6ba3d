#include "run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <tuple>

#include "bench/across_ranks.h"
#include "firkin/base/json_text.h"
#include "firkin/base/machine.h"
#include "firkin/comm/rank_info.h"

#include <torch/headeronly/version.h>

namespace firkin::cli {
namespace {

Host this_host() {
  const MachineState machine = machine_state();
  Host host{.host = machine.host, .cpu = machine.cpu, .os = machine.operating_system, .cores = machine.cpus};
  host.usable_cores = machine.allowed_cpus;
  host.cpu_quota = machine.cpu_quota;
  if (!machine.governor.empty()) host.governor = machine.governor;
  if (machine.load_average) host.load = (*machine.load_average)[0];
  return host;
}

std::vector<Host> hosts_of(const ProcessGroup& group) {
  std::vector<Host> of_ranks;
  for (const std::string& text : gather_texts(group, dump_json(host_json(this_host())))) {
    const auto document = nlohmann::json::parse(text);
    of_ranks.push_back(read_host(JsonFields(document, "")));
  }
  return by_host(of_ranks);
}

}  // namespace

RunHead begin_run(const std::string& command, const CommonFlags& common, const RankFlags& ranks, const ProcessGroup& group) {
  RunHead run = start_run(command, common);
  Environment& environment = run.environment;
  environment.libtorch = TORCH_VERSION;
  environment.backend = ranks.backend;
  environment.device = "cpu";
  environment.world_size = group.size;
  environment.threads_per_rank = at::get_num_threads();
  if (!group.link.empty()) environment.link = group.link;
  environment.hosts = hosts_of(group);
  environment.cpu = environment.hosts[0].cpu;
  environment.cores = environment.hosts[0].cores;
  environment.os = environment.hosts[0].os;
  return run;
}

std::string difference_from(const RunHead& earlier, const CommonFlags& common, const RankFlags& ranks) {
  const auto launched = rank_info_from_environment();
  const Host here = this_host();
  const std::vector<Host>& hosts = earlier.environment.hosts;
  std::vector<std::tuple<std::string, std::string, std::string>> facts = {
      {"firkin", earlier.environment.firkin, FIRKIN_VERSION},
      {"libtorch", earlier.environment.libtorch.value_or(""), TORCH_VERSION},
      {"host", hosts.empty() ? "" : hosts[0].host, here.host},
      {"cpu", earlier.environment.cpu.value_or(""), here.cpu},
      {"world size", fmt::format("{}", earlier.environment.world_size.value_or(0)),
       fmt::format("{}", launched ? launched->world_size : ranks.ranks)}};
  const nlohmann::json now = start_run("", common).settings;
  for (const auto& [name, value] : now.items()) {
    facts.emplace_back("--" + name, earlier.settings.is_object() ? earlier.settings.value(name, "") : "", value.get<std::string>());
  }
  for (const auto& [name, before, after] : facts) {
    if (before != after)
      return fmt::format("{} {}, now {}", name, before.empty() ? "(not given)" : before, after.empty() ? "(not given)" : after);
  }
  return "";
}

}  // namespace firkin::cli
