#include "module_mirror.h"

#include <utility>

namespace firkin::python {
namespace {

// "layers.0.weight" -> "layers.0" and "weight".
std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

torch::nn::Module& child(torch::nn::Module& parent, const std::string& name) {
  if (const auto* known = parent.named_children().find(name)) return **known;
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(name));
}

torch::nn::Module& make_path(torch::nn::Module& root, const std::string& path) {
  if (path.empty()) return root;
  const auto [parent, name] = split_path(path);
  return child(make_path(root, parent), name);
}

}  // namespace

std::shared_ptr<torch::nn::Module> mirror_module(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers) {
  auto root = std::make_shared<torch::nn::Module>("module");
  for (const NamedTensor& parameter : parameters) {
    const auto [path, name] = split_path(parameter.name);
    make_path(*root, path).register_parameter(name, parameter.tensor, parameter.tensor.requires_grad());
  }
  for (const NamedTensor& buffer : buffers) {
    const auto [path, name] = split_path(buffer.name);
    make_path(*root, path).register_buffer(name, buffer.tensor);
  }
  return root;
}

const torch::nn::Module* find_module(const torch::nn::Module& root, const std::string& path) {
  if (path.empty()) return &root;
  const auto [parent_path, name] = split_path(path);
  const torch::nn::Module* parent = find_module(root, parent_path);
  if (parent == nullptr) return nullptr;
  for (const auto& item : parent->named_children()) {
    if (item.key() == name) return item.value().get();
  }
  return nullptr;
}

}  // namespace firkin::python
