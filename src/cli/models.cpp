// firkin models: the named configurations.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "firkin/base/units.h"
#include "model/named_models.h"
#include "model_flags.h"

namespace firkin::cli {
namespace {

void print_models(const std::vector<ModelDescription>& models, const std::string& dtype) {
  fmt::print("{:<12} {:>14} {:>8} {:>10}   {}\n", "model", "parameters", "tensors", "gradients", "layers x width, vocabulary");
  for (const ModelDescription& model : models) {
    fmt::print("{:<12} {:>14} {:>8} {:>10}   {} x {}, {}\n", model.name, *model.parameters, *model.tensors,
               format_bytes(*model.gradient_bytes), model.sizes.at("num_layers"), model.sizes.at("d_model"), model.sizes.at("vocab_size"));
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
    std::vector<ModelDescription> models;
    nlohmann::json rows = nlohmann::json::array();
    for (const NamedModel& model : named_models()) {
      models.push_back(describe_model({.model = std::string(model.name), .sizes = {}, .dtype = flags->dtype}));
      rows.push_back(model_json(models.back()));
      rows.back()["description"] = model.description;
    }
    if (*json) {
      print_json({{"models", rows}});
    } else {
      print_models(models, flags->dtype);
    }
    return 0;
  };
}

}  // namespace firkin::cli
