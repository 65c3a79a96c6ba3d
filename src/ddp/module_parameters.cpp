#include "firkin/ddp/module_parameters.h"

#include <unordered_set>

namespace firkin {

std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (tensor.requires_grad() && seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back({item.key(), tensor});
  }
  return result;
}

}  // namespace firkin
