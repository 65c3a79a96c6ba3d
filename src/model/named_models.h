// The models that Firkin knows by name: `demo`, Stanford CS336 assignment 2's five sizes, and GPT-2's four.
#pragma once

#include <span>
#include <string_view>

#include "model/transformer_config.h"

namespace firkin {

struct NamedModel {
  std::string_view name;
  std::string_view description;
  TransformerConfig config;
};

// Every named model, smallest first within each family.
std::span<const NamedModel> named_models();

// Throws InputError, which lists the names.
const NamedModel& find_model(std::string_view name);

}  // namespace firkin
