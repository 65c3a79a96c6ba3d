// firkin models: the named configurations.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "firkin/base/units.h"
#include "model/named_models.h"
#include "model_flags.h"

namespace firkin::cli {
namespace {

int64_t size_of(const ModelDescription& model, std::string_view name) {
  const auto found = std::ranges::find(model.sizes, name, &std::pair<std::string, int64_t>::first);
  return found == model.sizes.end() ? 0 : found->second;
}

void print_models(const std::vector<ModelDescription>& models, const std::string& dtype) {
  fmt::print("{:<12} {:>14} {:>8} {:>10}   {}\n", "model", "parameters", "tensors", "gradients", "layers x width, vocabulary");
  for (const ModelDescription& model : models) {
    fmt::print("{:<12} {:>14} {:>8} {:>10}   {} x {}, {}\n", model.name, *model.parameters, *model.tensors,
               format_bytes(*model.gradient_bytes), size_of(model, "num_layers"), size_of(model, "d_model"), size_of(model, "vocab_size"));
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
