#include "flags.h"

#include <limits>

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
  add_value(app, "--model", flags.model, "a named model (firkin buckets lists them) or a\n.json file")->type_name(kModelType);
  add_model_detail_flags(app, flags);
}

void add_model_detail_flags(CLI::App& app, ModelFlags& flags) {
  const char* const group = "Model";
  add_value(app, "--dtype", flags.dtype, "type of parameters and gradients", group)->check(CLI::IsMember({"fp32", "bf16"}));
  for (const ConfigSize& size : kConfigSizes) {
    const std::string name(size.name);
    const auto set = [&flags, name](const int64_t& value) { flags.sizes[name] = value; };
    app.add_option_function<int64_t>(flag_name(name), set, fmt::format("override the model's {}", name))->group(group);
  }
}

std::vector<std::string> model_flag_names() {
  std::vector<std::string> names = {"--model", "--dtype"};
  for (const ConfigSize& size : kConfigSizes) names.push_back(flag_name(size.name));
  return names;
}

int64_t element_bytes(const ModelFlags& flags) {
  return flags.dtype == "bf16" ? 2 : kFloatBytes;
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

double cap_in_mib(int64_t bytes) {
  for (int digits = 1; digits < std::numeric_limits<double>::max_digits10; ++digits) {
    const double shorter = std::stod(fmt::format("{:.{}g}", mib(bytes), digits));
    if (bytes_from_mib(shorter, "--cap") == bytes) return shorter;
  }
  return mib(bytes);
}

}  // namespace firkin::cli
