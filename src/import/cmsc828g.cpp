#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "import.h"

namespace firkin {
namespace {

// Radford et al. 2019, table 2; vocabulary and context from the released checkpoints.
struct Gpt2Size {
  const char* name;
  int64_t width;
  int64_t blocks;

  static constexpr int64_t kVocabulary = 50257;
  static constexpr int64_t kContext = 1024;
};

constexpr std::array kSizes = {
    Gpt2Size{"gpt2", 768, 12},
    Gpt2Size{"gpt2-medium", 1024, 24},
    Gpt2Size{"gpt2-large", 1280, 36},
    Gpt2Size{"gpt2-xl", 1600, 48},
};

struct ParameterCount {
  std::string name;
  int64_t parameters = 0;
};

// In registration order, with the names that model/ gives them.
std::vector<ParameterCount> block_tensors(const Gpt2Size& size, int64_t index) {
  const int64_t d = size.width;
  std::vector<ParameterCount> tensors;
  const auto add = [&](const char* layer, int64_t weights, int64_t biases) {
    tensors.push_back({fmt::format("blocks.{}.{}.weight", index, layer), weights});
    tensors.push_back({fmt::format("blocks.{}.{}.bias", index, layer), biases});
  };
  add("ln_1", d, d);
  add("attn_c_attn", 3 * d * d, 3 * d);
  add("attn_c_proj", d * d, d);
  add("ln_2", d, d);
  add("mlp_c_fc", 4 * d * d, 4 * d);
  add("mlp_c_proj", 4 * d * d, d);
  return tensors;
}

std::vector<ParameterCount> final_norm(const Gpt2Size& size) {
  return {{"ln_final.weight", size.width}, {"ln_final.bias", size.width}};
}

ParameterCount token_embedding(const Gpt2Size& size) {  // tied: also the LM head
  return {"token_embeddings.weight", Gpt2Size::kVocabulary * size.width};
}

ParameterCount position_embedding(const Gpt2Size& size) {
  return {"position_embeddings.weight", Gpt2Size::kContext * size.width};
}

int64_t total_parameters(const std::vector<ParameterCount>& tensors) {
  int64_t total = 0;
  for (const ParameterCount& tensor : tensors) total += tensor.parameters;
  return total;
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

constexpr const char* kTiedHead = "LM head";  // the token embedding once more

// Each entry that the model has, with its parameters, and no other; the tied head may be missing.
void check_sizes(const CsvTable& table, const Gpt2Size& model) {
  std::map<std::string, int64_t> expected = {{"Token embedding", token_embedding(model).parameters},
                                             {"Position embedding", position_embedding(model).parameters},
                                             {"LayerNorm final", total_parameters(final_norm(model))},
                                             {kTiedHead, token_embedding(model).parameters}};
  for (int64_t i = 0; i < model.blocks; ++i) expected[fmt::format("Block {}", i)] = total_parameters(block_tensors(model, i));
  const std::map<std::string, size_t> rows = rows_by_name(table);
  for (const auto& [name, row] : rows) {
    const auto found = expected.find(name);
    if (found == expected.end()) table.fail(row, fmt::format("'{}' is not part of {}", name, model.name));
    const int64_t parameters = table.integer(row, kParameters);
    if (parameters != found->second) {
      table.fail(row, fmt::format("{} has {} parameters; expected {}, as in {}", name, parameters, found->second, model.name));
    }
  }
  for (const auto& [name, parameters] : expected) {
    if (!rows.contains(name) && name != kTiedHead)
      table.fail_at_end(fmt::format("no '{}'; expected it, with {} parameters", name, parameters));
  }
}

constexpr const char* kEmbeddings[] = {"token_embedding", "position_embedding"};

// Mean seconds of the gradients, by name. `forward`, `step` and `backward` are measured around the whole pass and belong to no tensor.
// Files of `firkin bench layers` have more: the forward of each layer, which is left out; the gradients of the embeddings; and no time of
// its own for the tied head, which the final norm's includes.
std::map<std::string, double> checked_times(const CsvTable& table, const Gpt2Size& model) {
  std::map<std::string, size_t> rows = rows_by_name(table);
  for (const char* whole : {"forward", "step", "backward"}) rows.erase(whole);
  std::map<std::string, double> times;
  const auto take = [&](const std::string& layer) {
    const std::string name = layer + " grad";
    const bool watched_forward = rows.erase(layer + " forward") > 0;
    const auto found = rows.find(name);
    if (found == rows.end()) {
      const bool in_another = layer == "lm_head" && watched_forward;
      if (!in_another && !std::ranges::count(kEmbeddings, layer))
        table.fail_at_end(fmt::format("no '{}'; expected its gradient's time", name));
      return;
    }
    times[name] = table.number(found->second, "mean");
    if (const char* expected = expected_of_measured(times[name])) {
      table.fail(found->second, fmt::format("mean is {}; expected {}", times[name], expected));
    }
    rows.erase(found);
  };
  take("lm_head");
  take("ln_f");
  for (int64_t i = 0; i < model.blocks; ++i) take(fmt::format("block_{}", i));
  for (const char* embedding : kEmbeddings) take(embedding);
  if (!rows.empty()) table.fail(rows.begin()->second, fmt::format("'{}' is not part of {}", rows.begin()->first, model.name));
  return times;
}

// The tensors of one module, whose gradients take `seconds` from the end of the profile on.
void append_module(TensorProfile& profile, const std::vector<ParameterCount>& tensors, double seconds) {
  const double start_s = profile.backward_s;
  const auto total = static_cast<double>(total_parameters(tensors));
  int64_t done = 0;
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    done += tensor->parameters;
    profile.names.push_back(tensor->name);
    profile.bytes.push_back(tensor->parameters * kFloatBytes);
    profile.ready_s.push_back(start_s + seconds * (static_cast<double>(done) / total));
  }
  profile.backward_s = start_s + seconds;
}

Imported from_tables(const CsvTable& sizes, const CsvTable& times_table, const Gpt2Size& model) {
  check_sizes(sizes, model);
  std::map<std::string, double> times = checked_times(times_table, model);
  TensorProfile profile;
  profile.backward_s = times["lm_head grad"];  // 0 if missing; its weight is the tied one, not complete yet
  append_module(profile, final_norm(model), times.at("ln_f grad"));
  for (int64_t i = model.blocks - 1; i >= 0; --i)
    append_module(profile, block_tensors(model, i), times.at(fmt::format("block_{} grad", i)));
  const ParameterCount embedding = token_embedding(model);
  // Times that the files do not have are 0.
  append_module(profile, {embedding, position_embedding(model)}, times["token_embedding grad"] + times["position_embedding grad"]);
  check_profile(profile);
  const int64_t parameters = profile.total_bytes() / kFloatBytes;
  std::vector<std::string> notes;
  if (rows_by_name(sizes).contains(kTiedHead)) {
    notes.push_back(fmt::format("'Token embedding' and '{}' ({} parameters each) are one tied tensor, {}: counted once", kTiedHead,
                                embedding.parameters, embedding.name));
    notes.push_back(fmt::format("the sizes therefore add up to {} parameters, {} more than {} has: {}", parameters + embedding.parameters,
                                embedding.parameters, model.name, parameters));
  }
  notes.emplace_back("the gradients of both embeddings are complete at the end of backward");
  notes.emplace_back("ignored the times 'forward', 'step' and 'backward', which belong to no gradient");
  return {.profile = std::move(profile), .model = model.name, .notes = std::move(notes)};
}

// The model of that name, or, without one, with as many blocks as the sizes name. Throws InputError, which lists the names.
const Gpt2Size& model_of(const CsvTable& sizes, const std::string& name) {
  std::vector<std::string> names;
  int64_t blocks = 0;
  for (size_t row = 0; row < sizes.rows(); ++row) blocks += sizes.text(row, "Name").starts_with("Block ") ? 1 : 0;
  for (const Gpt2Size& size : kSizes) {
    if (name.empty() ? size.blocks == blocks : name == size.name) return size;
    names.push_back(fmt::format("{} ({} blocks)", size.name, size.blocks));
  }
  if (name.empty()) sizes.fail_at_end(fmt::format("{} blocks; expected those of {}", blocks, fmt::join(names, ", ")));
  throw InputError(fmt::format("unknown GPT-2 model '{}'; expected one of {}", name, fmt::join(names, ", ")));
}

}  // namespace

Imported parse_cmsc828g_profile(std::string_view sizes_text, const std::string& sizes_file, std::string_view times_text,
                                const std::string& times_file, const std::string& model) {
  const CsvColumns size_columns = {.required = {"Name", kParameters}, .others_allowed = true};  // the first column has no name
  const CsvColumns time_columns = {.required = {"Name", "mean"}, .optional = {"min", "max", "std", "median"}};
  const CsvTable sizes = parse_csv(sizes_text, sizes_file, size_columns);
  return from_tables(sizes, parse_csv(times_text, times_file, time_columns), model_of(sizes, model));
}

}  // namespace firkin
