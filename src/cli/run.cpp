#include "run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>
#include <exception>
#include <filesystem>
#include <tuple>

#include "bench/across_ranks.h"
#include "firkin/base/file.h"
#include "firkin/base/machine.h"
#include "firkin/comm/rank_info.h"
#include "report/report.h"
#include "report/text.h"

#include <torch/headeronly/version.h>

namespace firkin::cli {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

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
  for (const std::string& text :
       gather_texts(group, host_json(this_host()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    const auto document = nlohmann::json::parse(text);
    of_ranks.push_back(read_host(JsonFields(document, "")));
  }
  return by_host(of_ranks);
}

// Every flag by its name, as it is in force; not those that say where the result goes.
nlohmann::json settings_of(const CLI::App& app) {
  nlohmann::json settings = nlohmann::json::object();
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (name == "help" || name == "json" || name == "out" || name == "resume" || name == "config") continue;
    const std::vector<std::string> values = option->count() > 0 ? option->results() : std::vector{option->get_default_str()};
    settings[name] = fmt::format("{}", fmt::join(values, ","));
  }
  return settings;
}

}  // namespace

Run begin_run(const std::string& command, const CommonFlags& common, const RankFlags& ranks, const ProcessGroup& group) {
  Run run;
  run.command = command;
  run.command_line = command_line();
  run.command_line.insert(run.command_line.begin(), "firkin");
  run.started = utc_now();
  run.seed = static_cast<int64_t>(common.seed);
  run.settings = settings_of(*common.app);
  Environment& environment = run.environment;
  environment.firkin = FIRKIN_VERSION;
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

std::string difference_from(const Run& earlier, const CommonFlags& common, const RankFlags& ranks) {
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
  const nlohmann::json now = settings_of(*common.app);
  for (const auto& [name, value] : now.items()) {
    facts.emplace_back("--" + name, earlier.settings.is_object() ? earlier.settings.value(name, "") : "", value.get<std::string>());
  }
  for (const auto& [name, before, after] : facts) {
    if (before != after)
      return fmt::format("{} {}, now {}", name, before.empty() ? "(not given)" : before, after.empty() ? "(not given)" : after);
  }
  return "";
}

void write_run_files(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files) {
  const std::filesystem::path out = common.out;
  write_file_atomically(out / "results.json", results_text(results));
  write_file_atomically(out / "report.html", render_report(results));
  for (const OutputFile& file : files) write_file_atomically(out / file.name, file.content);
}

void finish_run(const CommonFlags& common, const Results& results, const std::vector<OutputFile>& files, const std::string& text) {
  std::exception_ptr not_written;
  try {
    write_run_files(common, results, files);
  } catch (...) {
    not_written = std::current_exception();
  }
  if (common.json) {
    fmt::print("{}", results_text(results));
  } else {
    fmt::print("{}", text.empty() ? results_in_text(results) : text);
    std::string names = "report.html, results.json";
    for (const OutputFile& file : files) names += ", " + file.name;
    if (!not_written) fmt::print("\n{}", wrapped("wrote ", fmt::format("{}/: {}", common.out, names)));
  }
  std::fflush(stdout);
  if (not_written) std::rethrow_exception(not_written);
}

}  // namespace firkin::cli
