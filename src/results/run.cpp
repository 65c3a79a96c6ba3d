#include "results/run.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>

namespace firkin {

using nlohmann::json;

template <>
constexpr auto kFields<Environment> = std::tuple(Field("link", &Environment::link), Field("world_size", &Environment::world_size),
                                                 Field("threads_per_rank", &Environment::threads_per_rank),
                                                 Field("backend", &Environment::backend), Field("device", &Environment::device),
                                                 Field("gpu", &Environment::gpu), Field("nccl", &Environment::nccl),
                                                 Field("float32_matmul", &Environment::float32_matmul, "float32 products"),
                                                 Field("cpu", &Environment::cpu), Field("cores", &Environment::cores),
                                                 Field("os", &Environment::os), Field("firkin", &Environment::firkin, kTables | kDefault),
                                                 Field("libtorch", &Environment::libtorch), Field("hosts", &Environment::hosts, kIfAny));

template <>
constexpr auto kFields<RunHead> = std::tuple(Field("command", &RunHead::command), Field("command_line", &RunHead::command_line, kDefault),
                                             Field("started", &RunHead::started, kDefault), Field("seed", &RunHead::seed),
                                             Field("files", &RunHead::files, kIfAny),
                                             Field("environment", &RunHead::environment, kDefault));

static constexpr std::string_view kSchema = "firkin.results/1";

void write_object(const RunHead& run, json& document) {
  document["schema"] = kSchema;
  write_object<>(run, document);
  if (run.model) document["model"] = json_of(*run.model);
  if (!run.settings.empty()) document["settings"] = run.settings;
}

void read_object(const JsonFields& document, RunHead& run) {
  const auto schema = document.get<std::string>("schema");
  if (schema != kSchema) document.fail("schema", fmt::format("\"{}\"", schema), fmt::format("\"{}\"", kSchema));
  read_object<>(document, run);
  if (run.command != kPredictCommand) run.model = document.maybe<ModelDescription>("model");
  if (document.has("settings")) {
    const JsonFields settings = document.object("settings");
    for (const auto& [name, value] : settings.whole().items()) run.settings[name] = settings.get<std::string>(name);
  }
}

std::vector<Host> by_host(const std::vector<Host>& of_ranks) {
  std::vector<Host> hosts;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    auto found = std::ranges::find(hosts, of_ranks[rank].host, &Host::host);
    if (found == hosts.end()) {
      hosts.push_back(of_ranks[rank]);
      found = hosts.end() - 1;
    }
    found->ranks.push_back(static_cast<int64_t>(rank));
  }
  return hosts;
}

RunHead begin_head(const std::string& command) {
  RunHead run;
  run.command = command;
  run.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  run.environment.firkin = FIRKIN_VERSION;
  return run;
}

std::string name_of(const ModelDescription& model) {
  std::string name = model.name;
  if (model.batch_size) name += fmt::format(", batch {}", *model.batch_size);
  if (model.sequence_length) name += fmt::format(", sequence {}", *model.sequence_length);
  if (model.dtype) name += ", " + *model.dtype;
  return name;
}

Facts facts_of(const Environment& environment) {
  Facts facts = facts_of_fields(environment);
  for (const Host& host : environment.hosts) {
    Facts of_host = facts_of_fields(host);
    if (environment.hosts.size() == 1)
      std::erase_if(of_host, [&facts](const auto& fact) { return std::ranges::find(facts, fact) != facts.end(); });
    facts.insert(facts.end(), of_host.begin(), of_host.end());
  }
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

}  // namespace firkin
