// Flags that choose a transformer language model, and the training job that they describe.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "command.h"
#include "firkin/model/transformer_config.h"

namespace firkin::cli {

struct ModelFlags {
  std::string model = "demo";
  std::map<std::string, int64_t> sizes;  // by their name in kConfigSizes: those that the user changed
};

// --model, and a flag for every size.
void add_model_flags(CLI::App& app, ModelFlags& flags);

// Only the flags for the sizes.
void add_model_size_flags(CLI::App& app, ModelFlags& flags);

// The configuration that the flags describe. Throws InputError.
TransformerConfig model_config(const ModelFlags& flags);

// The model for people and scripts: its name, or "custom", and its sizes.
nlohmann::json config_json(const ModelFlags& flags, const TransformerConfig& config);

}  // namespace firkin::cli
