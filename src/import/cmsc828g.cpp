// Reads the layer sizes and layer times that an assignment of the course CMSC 828G asks for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <ranges>

#include "firkin/base/csv.h"
#include "firkin/base/units.h"
#include "import.h"
#include "model/transformer_config.h"

namespace firkin {
namespace {

// An entry of the files.
struct Module {
  std::string name;       // in layer sizes: "Block 3"
  std::string time_name;  // in layer times: "block_3"
  std::vector<TensorSpec> tensors = {};
  int64_t parameters = 0;
};

constexpr const char* kTiedHead = "LM head";  // the token embedding again

// The entries in the order of the forward pass: both embeddings, the blocks, the last norm.
std::vector<Module> modules_of(const NamedModel& model) {
  const std::map<std::string, Module> others = {{"token_embeddings", {"Token embedding", "token_embedding"}},
                                                {"position_embeddings", {"Position embedding", "position_embedding"}},
                                                {"ln_final", {"LayerNorm final", "ln_f"}}};
  std::vector<Module> modules;
  for (const TensorSpec& tensor : tensor_specs(model.config)) {
    const size_t index = tensor.name.starts_with("blocks.") ? 7 : 0;
    const std::string place = tensor.name.substr(index, tensor.name.find('.', index) - index);
    const Module module = index > 0 ? Module{"Block " + place, "block_" + place} : others.at(place);
    if (modules.empty() || modules.back().name != module.name) modules.push_back(module);
    modules.back().tensors.push_back(tensor);
    modules.back().parameters += tensor.numel;
  }
  return modules;
}

constexpr const char* kParameters = "No. Params";

std::map<std::string, size_t> rows_by_name(const CsvTable& table) {
  std::map<std::string, size_t> rows;
  for (size_t row = 0; row < table.rows(); ++row) {
    const std::string& name = table.text(row, "Name");
    if (!rows.emplace(name, row).second) table.fail(row, fmt::format("'{}' appears twice", name));
  }
  return rows;
}

// Throws unless the table has each entry of the model, with its parameters, and no other.
void check_sizes(const CsvTable& table, const std::string& model, const std::vector<Module>& modules) {
  std::map<std::string, int64_t> expected = {{kTiedHead, modules.front().parameters}};
  for (const Module& module : modules) expected[module.name] = module.parameters;
  const std::map<std::string, size_t> rows = rows_by_name(table);
  for (const auto& [name, row] : rows) {
    const auto found = expected.find(name);
    if (found == expected.end()) table.fail(row, fmt::format("'{}' is not part of {}", name, model));
    const int64_t parameters = table.integer(row, kParameters);
    if (parameters != found->second) {
      table.fail(row, fmt::format("{} has {} parameters; expected {}, as in {}", name, parameters, found->second, model));
    }
  }
  for (const auto& [name, parameters] : expected) {
    if (!rows.contains(name)) table.fail_in_header(fmt::format("no '{}'; expected it, with {} parameters", name, parameters));
  }
}

// Mean seconds of the gradients, by name. `forward`, `step` and `backward` are measured around the whole pass and
// belong to no tensor; the embeddings have no times.
std::map<std::string, double> checked_times(const CsvTable& table, const std::string& model, const std::vector<Module>& modules) {
  std::map<std::string, size_t> rows = rows_by_name(table);
  for (const char* whole : {"forward", "step", "backward"}) rows.erase(whole);
  std::map<std::string, double> times;
  const auto take = [&](const std::string& layer) {
    const std::string name = layer + " grad";
    const auto found = rows.find(name);
    if (found == rows.end()) table.fail_in_header(fmt::format("no '{}'; expected its gradient's time", name));
    times[name] = table.number(found->second, "mean");
    if (const char* expected = expected_of_measured(times[name])) {
      table.fail(found->second, fmt::format("mean is {}; expected {}", times[name], expected));
    }
    rows.erase(found);
  };
  take("lm_head");
  for (const Module& module : std::views::reverse(modules) | std::views::take(modules.size() - 2)) take(module.time_name);
  if (!rows.empty()) table.fail(rows.begin()->second, fmt::format("'{}' is not part of {}", rows.begin()->first, model));
  return times;
}

// Appends the tensors of one module, whose gradients take `seconds` after what the profile holds so far.
void append_module(TensorProfile& profile, const Module& module, double seconds) {
  const double start_s = profile.backward_s;
  int64_t done = 0;
  for (const TensorSpec& tensor : std::views::reverse(module.tensors)) {
    done += tensor.numel;
    profile.names.push_back(tensor.name);
    profile.bytes.push_back(tensor.numel * kFloatBytes);
    profile.ready_s.push_back(start_s + seconds * (static_cast<double>(done) / static_cast<double>(module.parameters)));
  }
  profile.backward_s = start_s + seconds;
}

Imported from_tables(const CsvTable& sizes, const CsvTable& times_table, const NamedModel& model) {
  const std::vector<Module> modules = modules_of(model);
  const std::string name(model.name);
  check_sizes(sizes, name, modules);
  const std::map<std::string, double> times = checked_times(times_table, name, modules);
  TensorProfile profile;
  profile.backward_s = times.at("lm_head grad");  // its weight is the tied one, not complete yet
  for (size_t i = modules.size() - 1; i >= 2; --i) append_module(profile, modules[i], times.at(modules[i].time_name + " grad"));
  Module embeddings = modules[0];
  embeddings.tensors.push_back(modules[1].tensors[0]);
  embeddings.parameters += modules[1].parameters;
  append_module(profile, embeddings, 0);
  check_profile(profile);
  const int64_t parameters = profile.total_bytes() / kFloatBytes;
  const TensorSpec& tied = modules[0].tensors[0];
  std::vector<std::string> notes = {fmt::format("'Token embedding' and '{}' ({} parameters each) are one tied tensor, {}: counted once",
                                                kTiedHead, tied.numel, tied.name),
                                    fmt::format("the sizes therefore add up to {} parameters, {} more than {} has: {}",
                                                parameters + tied.numel, tied.numel, name, parameters),
                                    "the gradients of both embeddings are complete at the end of backward",
                                    "ignored the times 'forward', 'step' and 'backward', which belong to no gradient"};
  return {.profile = std::move(profile), .model = name, .notes = std::move(notes)};
}

// The model with as many blocks as the sizes name. Throws InputError, which lists the names.
const NamedModel& model_of(const CsvTable& sizes) {
  std::vector<std::string> names;
  int64_t blocks = 0;
  for (size_t row = 0; row < sizes.rows(); ++row) blocks += sizes.text(row, "Name").starts_with("Block ") ? 1 : 0;
  for (const NamedModel& model : named_models()) {
    if (model.config.family != ModelFamily::kGpt2) continue;
    if (model.config.num_layers == blocks) return model;
    names.push_back(fmt::format("{} ({} blocks)", model.name, model.config.num_layers));
  }
  sizes.fail_in_header(fmt::format("{} blocks; expected those of {}", blocks, fmt::join(names, ", ")));
}

}  // namespace

Imported parse_cmsc828g_profile(std::string_view sizes_text, const std::string& sizes_file, std::string_view times_text,
                                const std::string& times_file) {
  // The first column has no name.
  const CsvColumns size_columns = {.required = {"Name", kParameters}, .others_allowed = true};
  const CsvColumns time_columns = {.required = {"Name", "mean"}, .optional = {"min", "max", "std", "median"}};
  const CsvTable sizes = parse_csv(sizes_text, sizes_file, size_columns);
  return from_tables(sizes, parse_csv(times_text, times_file, time_columns), model_of(sizes));
}

}  // namespace firkin
