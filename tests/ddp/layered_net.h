// A net of three layers that await their parameters, on any device, and its batches.
#pragma once

#include "../torch.h"
#include "firkin/ddp/await_parameters.h"
#include "tensors.h"

namespace firkin {

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(int64_t inputs, int64_t outputs, const at::TensorOptions& options)
      : weight(register_parameter("weight", at::empty({inputs, outputs}, options))),
        bias(register_parameter("bias", at::empty({outputs}, options))) {}
  at::Tensor forward(const at::Tensor& x) {
    await_parameters(*this);
    return torch::tanh(at::matmul(x, weight) + bias);
  }
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Layer);

// The same numbers in every instance.
class LayeredNetImpl : public torch::nn::Module {
 public:
  explicit LayeredNetImpl(const at::TensorOptions& options)
      : layers({register_module("first", Layer(6, 9, options)), register_module("second", Layer(9, 7, options)),
                register_module("third", Layer(7, 4, options))}) {
    seed_parameters(*this, 3);
  }
  // between: what happens to what comes out of the first layer.
  at::Tensor forward(const at::Tensor& x, const std::function<at::Tensor(at::Tensor)>& between = {}) {
    at::Tensor h = layers[0]->forward(x);
    if (between) h = between(h);
    for (size_t i = 1; i < layers.size(); ++i) h = layers[i]->forward(h);
    return h;
  }
  std::vector<Layer> layers;
};
TORCH_MODULE(LayeredNet);

// The same numbers on every device: of this step and rank.
inline at::Tensor batch_of(int step, int rank, const at::TensorOptions& options) {
  return seeded_randn({5, 6}, static_cast<uint64_t>(100 * step + rank)).to(options);
}

}  // namespace firkin
