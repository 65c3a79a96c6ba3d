#include "firkin/model/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/model/named_models.h"

namespace firkin {
namespace {

using Json = nlohmann::json;

// A configuration file with what is needed to say where something is wrong in it.
struct ModelFile {
  std::string path;
  std::string text;
  Json object;

  std::string place(size_t byte) const {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
    return fmt::format("{}:{}", path, 1 + std::count(text.begin(), end, '\n'));
  }
  // A key's line: keys are distinct, so the first mention is the one that counts.
  std::string place(std::string_view key) const { return place(text.find(fmt::format("\"{}\"", key))); }
};

ModelFile parse(const std::filesystem::path& path) {
  ModelFile file{.path = path.string(), .text = read_file(path), .object = {}};
  std::set<std::string> seen;
  const auto reject_repeated_keys = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(parsed.get<std::string>()).second) {
      throw InputError(
          fmt::format("{}: key '{}' appears twice; expected it once", file.place(parsed.get<std::string>()), parsed.get<std::string>()));
    }
    return true;
  };
  try {
    file.object = Json::parse(file.text, reject_repeated_keys);
  } catch (const Json::parse_error& error) {
    throw InputError(fmt::format("{}: not JSON; expected an object such as {{\"base\": \"demo\", \"num_layers\": 4}}",
                                 file.place(error.byte > 0 ? error.byte - 1 : 0)));
  } catch (const Json::out_of_range&) {
    throw InputError(fmt::format("{}: a number is too large; expected integers of at most 64 bits and finite numbers", file.path));
  }
  if (!file.object.is_object()) {
    throw InputError(fmt::format("{}:1: a JSON {}; expected an object such as {{\"base\": \"demo\", \"num_layers\": 4}}", file.path,
                                 file.object.type_name()));
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
      throw InputError(fmt::format("{}: no {}; expected it, or a base to take it from", file.path, size.name));
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

TransformerConfig model_from_json_file(const std::filesystem::path& path) {
  const ModelFile file = parse(path);
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
  check_config(config, file.path);
  return config;
}

TransformerConfig resolve_model(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) return model_from_json_file(name_or_file);
  return find_model(name_or_file).config;
}

}  // namespace firkin
