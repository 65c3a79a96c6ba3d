// Small models of the kinds that data-parallel training meets, each with a loss that is a mean over samples.
#pragma once

#include <map>

#include "../torch.h"
#include "tensors.h"
#include "workload/transformer.h"

namespace firkin {

// A module with its loss on samples [first, first + count) of the global batch of a step. The same numbers in every instance.
struct TestModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(int step, int64_t first, int64_t count)> loss;
};

inline constexpr int64_t kGlobalBatch = 12;  // shared evenly by 1, 2, 3 and 4 ranks

inline at::Tensor samples(at::IntArrayRef shape, int step, int64_t first, int64_t count, at::ScalarType dtype) {
  std::vector<int64_t> whole{kGlobalBatch};
  whole.insert(whole.end(), shape.begin(), shape.end());
  return seeded_randn(whole, 100 + static_cast<uint64_t>(step)).narrow(0, first, count).to(dtype);
}

inline TestModel make_mlp(at::ScalarType dtype) {
  torch::nn::Sequential net(torch::nn::Linear(12, 24), torch::nn::Tanh(), torch::nn::Linear(24, 16), torch::nn::Tanh(),
                            torch::nn::Linear(16, 4));
  return {net.ptr(), [net, dtype](int step, int64_t first, int64_t count) mutable {
            return net->forward(samples({12}, step, first, count, dtype)).pow(2).mean();
          }};
}

inline TestModel make_tied(at::ScalarType dtype) {
  struct Tied : torch::nn::Module {
    Tied() {
      encode = register_module("encode", torch::nn::Linear(torch::nn::LinearOptions(10, 14).bias(false)));
      middle = register_module("middle", torch::nn::Linear(14, 14));
    }
    torch::nn::Linear encode = nullptr;
    torch::nn::Linear middle = nullptr;
  };
  auto net = std::make_shared<Tied>();
  return {net, [net, dtype](int step, int64_t first, int64_t count) {
            const at::Tensor x = samples({10}, step, first, count, dtype);
            const at::Tensor hidden = torch::tanh(net->middle(torch::tanh(net->encode(x))));
            return (at::matmul(hidden, net->encode->weight) - x).pow(2).mean();
          }};
}

inline TestModel make_frozen(at::ScalarType dtype) {
  TestModel model = make_mlp(dtype);
  model.module->named_parameters()["2.weight"].set_requires_grad(false);
  return model;
}

// Channels-last, with a 1x1 convolution.
inline TestModel make_convolutional(at::ScalarType dtype) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3)), torch::nn::Tanh(),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 4, 1)), torch::nn::Tanh(), torch::nn::Flatten(),
                            torch::nn::Linear(4 * 4 * 4, 5));
  for (at::Tensor& p : net->parameters()) {
    if (p.dim() == 4) p.set_data(p.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  return {net.ptr(), [net, dtype](int step, int64_t first, int64_t count) mutable {
            const at::Tensor x = samples({3, 6, 6}, step, first, count, dtype).contiguous(at::MemoryFormat::ChannelsLast);
            return net->forward(x).pow(2).mean();
          }};
}

inline TestModel make_transformer(at::ScalarType /*dtype*/) {
  TransformerLM net(TransformerConfig{.family = ModelFamily::kCs336,
                                      .vocab_size = 32,
                                      .context_length = 8,
                                      .d_model = 16,
                                      .d_ff = 24,
                                      .num_layers = 2,
                                      .num_heads = 2,
                                      .tied = false});
  return {net.ptr(), [net](int step, int64_t first, int64_t count) mutable {
            const at::Tensor tokens = samples({9}, step, first, count, at::kDouble).mul(8).abs().to(at::kLong).clamp(0, 31);
            return language_model_loss(net->forward(tokens.narrow(1, 0, 8)), tokens.narrow(1, 1, 8));
          }};
}

inline const std::map<std::string, TestModel (*)(at::ScalarType dtype)> kTestModels = {
    {"mlp", make_mlp},
    {"tied", make_tied},
    {"frozen", make_frozen},
    {"convolutional", make_convolutional},
    {"transformer", make_transformer},
};

inline std::vector<std::string> test_model_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kTestModels) names.push_back(name);
  return names;
}

inline TestModel make_test_model(const std::string& name, at::ScalarType dtype) {
  TestModel model = kTestModels.at(name)(dtype);
  model.module->to(dtype);
  seed_parameters(*model.module, 7);
  return model;
}

}  // namespace firkin
