// Model configurations from JSON files.
//
//   {"base": "xl", "num_layers": 4}                       xl, but with four blocks
//   {"family": "gpt2", "vocab_size": 256, "context_length": 128, "d_model": 64, "d_ff": 256, "num_layers": 2, "num_heads": 4, "tied": true}
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "model/transformer_config.h"

namespace firkin {

// One JSON object. Keys: `base` (a named model to start from), `family` (cs336 or gpt2), the sizes in kConfigSizes, `tied`,
// `rope_theta`. Without `base`, every size is required and the rest defaults as in TransformerConfig.
// Throws InputError with file and line for unreadable files, malformed JSON, unknown or repeated keys, wrong types, and sizes that
// check_config rejects.
TransformerConfig parse_model_json(std::string_view text, const std::string& file);  // `file`: the name that errors carry
TransformerConfig model_from_json_file(const std::filesystem::path& path);

// What a --model flag means: a file if it ends in .json, a named model otherwise. Throws InputError as those two do.
TransformerConfig resolve_model(const std::string& name_or_file);

}  // namespace firkin
