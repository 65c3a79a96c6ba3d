#include "run.h"

#include <fmt/format.h>

#include <tuple>

#include "bench/environment.h"
#include "firkin/comm/rank_info.h"

#include <torch/headeronly/version.h>

namespace firkin::cli {

RunHead begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group) {
  RunHead run = start_run(command, common);
  add_ranks(group, run.environment);
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
    if (name == "memory-limit-gib") continue;  // what fitted was measured in the same way
    const bool stated = earlier.settings.is_object() && earlier.settings.contains(name);
    const nlohmann::json before = stated ? earlier.settings[name] : nlohmann::json("");
    facts.emplace_back("--" + name, before.is_string() ? before.get<std::string>() : before.dump(), value.get<std::string>());
  }
  for (const auto& [name, before, after] : facts) {
    if (before != after)
      return fmt::format("{} {}, now {}", name, before.empty() ? "(not given)" : before, after.empty() ? "(not given)" : after);
  }
  return "";
}

}  // namespace firkin::cli
