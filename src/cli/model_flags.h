// Flags that choose a transformer language model, and the training job that they describe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>

#include "command.h"
#include "model/transformer_config.h"
#include "results/run.h"

namespace firkin::cli {

struct ModelFlags {
  std::string model = "demo";
  std::map<std::string, int64_t> sizes;  // by their name in kConfigSizes: those that the user changed
  std::string dtype = "fp32";            // of parameters, gradients and activations
};

// --model, --dtype, and a flag for every size.
void add_model_flags(CLI::App& app, ModelFlags& flags);

// Only the flags for the sizes.
void add_model_size_flags(CLI::App& app, ModelFlags& flags);

// The names of all of them, with their dashes.
std::vector<std::string> model_flag_names();

// Only --dtype.
void add_dtype_flag(CLI::App& app, ModelFlags& flags);

at::ScalarType model_dtype(const ModelFlags& flags);
int64_t element_bytes(const ModelFlags& flags);

// The configuration that the flags describe. Throws InputError.
TransformerConfig model_config(const ModelFlags& flags);

// The model for people and scripts, without what it is trained on. Allocates no parameter.
ModelDescription describe_model(const ModelFlags& flags);

}  // namespace firkin::cli
