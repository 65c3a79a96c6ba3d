#include "results/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr std::string_view kSchema = "firkin.results/1";
constexpr const char* kHosts = "hosts";

constexpr Field<Host> kHostFields[] = {{"host", &Host::host, Unit::kText, "host"},
                                       {"cpu", &Host::cpu, Unit::kText, "cpu"},
                                       {"os", &Host::os, Unit::kText, "os"},
                                       {"cores", &Host::cores, Unit::kCount, "cores"},
                                       {"usable_cores", &Host::usable_cores, Unit::kCount, "usable cores"},
                                       {"cpu_quota", &Host::cpu_quota, Unit::kPlain, "cpu quota (cores)"},
                                       {"governor", &Host::governor, Unit::kText, "governor"},
                                       {"load", &Host::load, Unit::kPlain, "load at start"},
                                       {kRanksKey, &Host::ranks, Unit::kCount, "ranks"}};

constexpr Field<Environment> kEnvironmentFields[] = {{"link", &Environment::link, Unit::kText, "link"},
                                                     {"world_size", &Environment::world_size, Unit::kCount, "world size"},
                                                     {"threads_per_rank", &Environment::threads_per_rank, Unit::kCount, "threads per rank"},
                                                     {"backend", &Environment::backend, Unit::kText, "backend"},
                                                     {"device", &Environment::device, Unit::kText, "device"},
                                                     {"gpu", &Environment::gpu, Unit::kText, "gpu"},
                                                     {"nccl", &Environment::nccl, Unit::kText, "nccl"},
                                                     {"float32_matmul", &Environment::float32_matmul, Unit::kText, "float32 products"},
                                                     {kHostFields[1].key, &Environment::cpu, Unit::kText, "cpu"},
                                                     {kHostFields[3].key, &Environment::cores, Unit::kCount, "cores"},
                                                     {kHostFields[2].key, &Environment::os, Unit::kText, "os"},
                                                     {"firkin", &Environment::firkin, Unit::kText, "firkin"},
                                                     {"libtorch", &Environment::libtorch, Unit::kText, "libtorch"}};

constexpr Field<ModelDescription> kModelFields[] = {
    {kNameKey, &ModelDescription::name, Unit::kText, "name"},
    {"family", &ModelDescription::family, Unit::kText, "family", kPage},
    {"dtype", &ModelDescription::dtype, Unit::kText, "dtype"},
    {"tied", &ModelDescription::tied, Unit::kText, "tied", kPage},
    {"parameters", &ModelDescription::parameters, Unit::kCount, "parameters", kPage},
    {kTensorsKey, &ModelDescription::tensors, Unit::kCount, "tensors", kPage},
    {kGradientBytesKey, &ModelDescription::gradient_bytes, Unit::kBytes, "gradient size"},
    {"batch_size", &ModelDescription::batch_size, Unit::kCount, "batch size"},
    {"sequence_length", &ModelDescription::sequence_length, Unit::kCount, "sequence length"},
    {"text", &ModelDescription::text, Unit::kText, "text", kPage}};

constexpr Field<RunHead> kRunFields[] = {{"command", &RunHead::command},
                                         {"command_line", &RunHead::command_line},
                                         {"started", &RunHead::started},
                                         {"seed", &RunHead::seed, Unit::kCount},
                                         {"files", &RunHead::files}};

std::string words(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

}  // namespace

json model_json(const ModelDescription& model) {
  json object = to_json<ModelDescription>(kModelFields, model);
  for (const auto& [name, size] : model.sizes) object[name] = size;
  return object;
}

ModelDescription read_model(const JsonFields& fields) {
  ModelDescription model = from_json<ModelDescription>(kModelFields, fields);
  for (const auto& [name, value] : fields.whole().items()) {
    const bool known = std::ranges::any_of(kModelFields, [&name = name](const auto& field) { return name == field.key; });
    if (!known && value.is_number_integer()) model.sizes.emplace(name, *fields.maybe_integer(name));
  }
  return model;
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

json host_json(const Host& host) {
  return to_json<Host>(kHostFields, host);
}

Host read_host(const JsonFields& fields) {
  return from_json<Host>(kHostFields, fields);
}

void write_run(const RunHead& run, json& document) {
  document["schema"] = kSchema;
  document.update(to_json<RunHead>(kRunFields, run));
  if (run.files.empty()) document.erase(kRunFields[4].key);
  json environment = to_json<Environment>(kEnvironmentFields, run.environment);
  if (!run.environment.hosts.empty()) environment[kHosts] = rows_to_json<Host>(kHostFields, run.environment.hosts);
  document["environment"] = environment;
  if (run.model) document[kModelKey] = model_json(*run.model);
  if (!run.settings.is_null()) document[kSettingsKey] = run.settings;
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

RunHead read_run(const JsonFields& document) {
  const std::string schema = document.text("schema");
  if (schema != kSchema) document.fail("schema", fmt::format("\"{}\"", schema), fmt::format("\"{}\"", kSchema));
  RunHead run;
  run.command = document.text(kRunFields[0].key);
  run.command_line = document.maybe_texts(kRunFields[1].key);
  run.started = document.maybe_text(kRunFields[2].key).value_or("");
  run.seed = document.maybe_integer(kRunFields[3].key);
  run.files = document.maybe_texts(kRunFields[4].key);
  if (const auto fields = document.maybe_object("environment")) {
    for (const auto& field : kEnvironmentFields) {
      if (fields->has(field.key)) field_details::set(field, run.environment, *fields);
    }
    for (const JsonFields& host : fields->maybe_objects(kHosts)) run.environment.hosts.push_back(read_host(host));
  }
  if (run.command != kPredictCommand) {
    if (const auto fields = document.maybe_object(kModelKey)) run.model = read_model(*fields);
  }
  if (const auto fields = document.maybe_object(kSettingsKey)) run.settings = fields->whole();
  return run;
}

std::vector<std::string> model_csv_names() {
  std::vector<std::string> names = csv_names<ModelDescription>(kModelFields);
  names[0] = kModelKey;
  return names;
}

std::vector<std::string> model_csv(const ModelDescription& model) {
  return csv_line<ModelDescription>(kModelFields, model);
}

std::string name_of(const ModelDescription& model) {
  std::string name = model.name;
  if (model.batch_size) name += fmt::format(", batch {}", *model.batch_size);
  if (model.sequence_length) name += fmt::format(", sequence {}", *model.sequence_length);
  if (model.dtype) name += ", " + *model.dtype;
  return name;
}

Facts facts_of(const Environment& environment) {
  Facts facts = facts_of<Environment>(kEnvironmentFields, environment);
  for (const Host& host : environment.hosts) {
    Facts of_host = facts_of<Host>(kHostFields, host);
    if (environment.hosts.size() == 1)
      std::erase_if(of_host, [&facts](const auto& fact) { return std::ranges::find(facts, fact) != facts.end(); });
    facts.insert(facts.end(), of_host.begin(), of_host.end());
  }
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

Facts facts_of(const ModelDescription& model) {
  Facts facts = facts_of<ModelDescription>(kModelFields, model);
  for (const auto& [name, size] : model.sizes) facts.emplace_back(words(name), grouped(size, Medium::kPage));
  return facts;
}

}  // namespace firkin
