#include "model_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/error.h"
#include "model/model_file.h"
#include "model/named_models.h"
#include "model/transformer.h"

namespace firkin::cli {
namespace {

// d_model -> --d-model
std::string flag_name(std::string_view size) {
  std::string name = fmt::format("--{}", size);
  std::ranges::replace(name, '_', '-');
  return name;
}

}  // namespace

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("--model", flags.model, "a named model (firkin models lists them) or a\n.json file")
      ->capture_default_str()
      ->type_name(kModelType);
  add_dtype_flag(app, flags);
  add_model_size_flags(app, flags);
}

std::vector<std::string> model_flag_names() {
  std::vector<std::string> names = {"--model", "--dtype"};
  for (const ConfigSize& size : kConfigSizes) names.push_back(flag_name(size.name));
  return names;
}

void add_dtype_flag(CLI::App& app, ModelFlags& flags) {
  app.add_option("--dtype", flags.dtype, "of parameters and gradients")->capture_default_str()->check(CLI::IsMember({"fp32", "bf16"}));
}

at::ScalarType model_dtype(const ModelFlags& flags) {
  return flags.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

int64_t element_bytes(const ModelFlags& flags) {
  return static_cast<int64_t>(c10::elementSize(model_dtype(flags)));
}

void add_model_size_flags(CLI::App& app, ModelFlags& flags) {
  for (const ConfigSize& size : kConfigSizes) {
    const std::string name(size.name);
    app.add_option_function<int64_t>(
           flag_name(name), [&flags, name](const int64_t& value) { flags.sizes[name] = value; },
           fmt::format("instead of the model's own {}", name))
        ->group("Model sizes");
  }
}

TransformerConfig model_config(const ModelFlags& flags) {
  TransformerConfig config = resolve_model(flags.model);
  std::string changed = "--model " + flags.model;
  for (const ConfigSize& size : kConfigSizes) {
    const auto found = flags.sizes.find(std::string(size.name));
    if (found == flags.sizes.end()) continue;
    config.*size.member = found->second;
    changed += fmt::format(" {} {}", flag_name(size.name), found->second);
  }
  check_config(config, changed);
  return config;
}

ModelDescription describe_model(const ModelFlags& flags) {
  const TransformerConfig config = model_config(flags);
  const std::vector<TensorSpec> tensors = tensor_specs(config);
  int64_t elements = 0;
  for (const TensorSpec& tensor : tensors) elements += tensor.numel;
  ModelDescription model;
  model.name = flags.sizes.empty() ? flags.model : flags.model + " (changed)";
  model.family = family_name(config.family);
  model.dtype = flags.dtype;
  model.tied = config.tied;
  for (const ConfigSize& size : kConfigSizes) model.sizes.emplace(size.name, config.*size.member);
  model.parameters = elements;
  model.tensors = static_cast<int64_t>(tensors.size());
  model.gradient_bytes = elements * element_bytes(flags);
  return model;
}

}  // namespace firkin::cli
