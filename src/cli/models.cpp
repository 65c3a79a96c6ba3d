// firkin models: the named configurations.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "firkin/base/units.h"
#include "model/named_models.h"
#include "model/transformer.h"
#include "model_flags.h"

namespace firkin::cli {
namespace {

nlohmann::json describe(const NamedModel& model, const std::string& dtype) {
  const ModelFlags flags{.model = std::string(model.name), .sizes = {}, .dtype = dtype};
  nlohmann::json json = config_json(flags, model.config);
  int64_t parameters = 0;
  const std::vector<TensorSpec> tensors = tensor_specs(model.config);
  for (const TensorSpec& tensor : tensors) parameters += tensor.numel;
  json["description"] = model.description;
  json["parameters"] = parameters;
  json["tensors"] = tensors.size();
  json["gradient_bytes"] = parameters * element_bytes(flags);
  json["dtype"] = dtype;
  return json;
}

void print_models(const nlohmann::json& models, const std::string& dtype) {
  fmt::print("{:<12} {:>14} {:>8} {:>10}   {}\n", "model", "parameters", "tensors", "gradients", "layers x width, vocabulary");
  for (const nlohmann::json& m : models) {
    fmt::print("{:<12} {:>14} {:>8} {:>10}   {} x {}, {}\n", m["name"].get<std::string>(), m["parameters"].get<int64_t>(),
               m["tensors"].get<int64_t>(), format_bytes(m["gradient_bytes"]), m["num_layers"].get<int64_t>(), m["d_model"].get<int64_t>(),
               m["vocab_size"].get<int64_t>());
  }
  fmt::print("\nGradients in {}. Any size can be changed: firkin tune --model small --num-layers 4\n", dtype);
}

}  // namespace

Run declare_models(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  auto flags = std::make_shared<ModelFlags>();
  app.add_flag("--json", *json, "print the result as JSON on standard output");
  add_dtype_flag(app, *flags);
  return [json, flags] {
    nlohmann::json models = nlohmann::json::array();
    for (const NamedModel& model : named_models()) models.push_back(describe(model, flags->dtype));
    if (*json) {
      print_json({{"models", models}});
    } else {
      print_models(models, flags->dtype);
    }
    return 0;
  };
}

}  // namespace firkin::cli
