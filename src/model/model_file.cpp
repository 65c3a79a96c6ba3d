#include "model/model_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "model/named_models.h"

namespace firkin {
namespace {

using Json = nlohmann::json;

constexpr const char* kExpected = "an object such as {\"base\": \"demo\", \"num_layers\": 4}";

// A configuration file with what is needed to say where something is wrong in it.
struct ModelFile {
  std::string path;
  std::string_view text;
  Json object;

  // Of a key's value, or of the whole for "" and for a key that is not there.
  std::string place(std::string_view key) const { return fmt::format("{}:{}", path, json_line_of(text, key)); }
};

ModelFile parse(std::string_view text, const std::string& path) {
  ModelFile file{.path = path, .text = text, .object = parse_json(text, path, kExpected)};
  if (!file.object.is_object()) {
    throw InputError(fmt::format("{}: a JSON {}; expected {}", file.place(""), file.object.type_name(), kExpected));
  }
  return file;
}

std::string string_at(const ModelFile& file, const char* key) {
  const Json& value = file.object.at(key);
  if (!value.is_string()) throw InputError(fmt::format("{}: {} is {}; expected a string", file.place(key), key, value.dump()));
  return value.get<std::string>();
}

TransformerConfig base_of(const ModelFile& file) {
  if (!file.object.contains("base")) return {};
  try {
    return find_model(string_at(file, "base")).config;
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: base: {}", file.place("base"), error.what()));
  }
}

void check_keys(const ModelFile& file) {
  std::set<std::string_view> known = {"base", "family", "tied", "rope_theta"};
  for (const ConfigSize& size : kConfigSizes) known.insert(size.name);
  for (const auto& [key, value] : file.object.items()) {
    if (!known.contains(key)) {
      throw InputError(
          fmt::format("{}: unknown key '{}'; expected base, family, vocab_size, context_length, d_model, d_ff, num_layers, "
                      "num_heads, tied or rope_theta",
                      file.place(key), key));
    }
  }
}

void read_size(const ModelFile& file, const ConfigSize& size, TransformerConfig& config) {
  const auto found = file.object.find(size.name);
  if (found == file.object.end()) {
    if (!file.object.contains("base")) {
      throw InputError(fmt::format("{}: no {}; expected it, or a base to take it from", file.place(""), size.name));
    }
    return;
  }
  // An unsigned value beyond int64_t would wrap around.
  if (!found->is_number_integer() || (found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX)) {
    throw InputError(fmt::format("{}: {} is {}; expected an integer", file.place(size.name), size.name, found->dump()));
  }
  config.*size.member = found->get<int64_t>();
}

}  // namespace

TransformerConfig parse_model_json(std::string_view text, const std::string& path) {
  const ModelFile file = parse(text, path);
  check_keys(file);
  TransformerConfig config = base_of(file);
  if (file.object.contains("family")) config.family = family_from_name(string_at(file, "family"), file.place("family"));
  for (const ConfigSize& size : kConfigSizes) read_size(file, size, config);
  if (const auto tied = file.object.find("tied"); tied != file.object.end()) {
    if (!tied->is_boolean()) throw InputError(fmt::format("{}: tied is {}; expected true or false", file.place("tied"), tied->dump()));
    config.tied = tied->get<bool>();
  }
  if (const auto theta = file.object.find("rope_theta"); theta != file.object.end()) {
    if (!theta->is_number()) {
      throw InputError(fmt::format("{}: rope_theta is {}; expected a number", file.place("rope_theta"), theta->dump()));
    }
    config.rope_theta = theta->get<double>();
  }
  check_config(config, file.place(""));
  return config;
}

TransformerConfig model_from_json_file(const std::filesystem::path& path) {
  return parse_model_json(read_text_file(path, kLongestJsonLine, kExpected), path.string());
}

TransformerConfig resolve_model(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) return model_from_json_file(name_or_file);
  return find_model(name_or_file).config;
}

}  // namespace firkin
