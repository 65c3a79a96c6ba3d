#include "results/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace firkin {

using nlohmann::json;

template <>
constexpr auto kFields<Environment> = std::tuple(
    Field("link", &Environment::link, Unit::kText, "link"), Field("world_size", &Environment::world_size, Unit::kCount, "world size"),
    Field("threads_per_rank", &Environment::threads_per_rank, Unit::kCount, "threads per rank"),
    Field("backend", &Environment::backend, Unit::kText, "backend"), Field("device", &Environment::device, Unit::kText, "device"),
    Field("gpu", &Environment::gpu, Unit::kText, "gpu"), Field("nccl", &Environment::nccl, Unit::kText, "nccl"),
    Field("float32_matmul", &Environment::float32_matmul, Unit::kText, "float32 products"),
    Field("cpu", &Environment::cpu, Unit::kText, "cpu"), Field("cores", &Environment::cores, Unit::kCount, "cores"),
    Field("os", &Environment::os, Unit::kText, "os"), Field("firkin", &Environment::firkin, Unit::kText, "firkin", kEverywhere | kDefault),
    Field("libtorch", &Environment::libtorch, Unit::kText, "libtorch"), Field("hosts", &Environment::hosts, kIfAny));

template <>
constexpr auto kFields<RunHead> = std::tuple(Field("command", &RunHead::command), Field("command_line", &RunHead::command_line),
                                             Field("started", &RunHead::started, kDefault), Field("seed", &RunHead::seed, Unit::kCount),
                                             Field("files", &RunHead::files, kIfAny),
                                             Field("environment", &RunHead::environment, kDefault));

namespace {

constexpr std::string_view kSchema = "firkin.results/1";

std::string words(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

}  // namespace

void write_object(const ModelDescription& model, json& object) {
  write_by_table(model, object);
  for (const auto& [name, size] : model.sizes) object[name] = size;
}

void read_object(const JsonFields& fields, ModelDescription& model) {
  read_by_table(fields, model);
  const json known = json_of(model);
  for (const auto& [name, value] : fields.whole().items()) {
    if (!known.contains(name) && value.is_number_integer()) model.sizes.emplace(name, fields.get<int64_t>(name));
  }
}

void write_object(const RunHead& run, json& document) {
  document["schema"] = kSchema;
  write_by_table(run, document);
  if (run.model) document["model"] = json_of(*run.model);
  if (!run.settings.is_null()) document["settings"] = run.settings;
}

void read_object(const JsonFields& document, RunHead& run) {
  const auto schema = document.get<std::string>("schema");
  if (schema != kSchema) document.fail("schema", fmt::format("\"{}\"", schema), fmt::format("\"{}\"", kSchema));
  read_by_table(document, run);
  if (run.command != kPredictCommand) run.model = document.maybe<ModelDescription>("model");
  if (const json* settings = document.find("settings")) run.settings = JsonFields(*settings, document.path_of("settings")).whole();
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
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char started[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &utc);
  RunHead run;
  run.command = command;
  run.started = started;
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

Facts facts_of(const ModelDescription& model) {
  Facts facts = facts_of_fields(model);
  for (const auto& [name, size] : model.sizes) facts.emplace_back(words(name), display_count(size));
  return facts;
}

}  // namespace firkin
