#include "train/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace firkin {
namespace {

int64_t draw(const at::Tensor& logits, const GenerateOptions& options, at::Generator& random) {
  if (options.temperature <= 0) return logits.argmax().item<int64_t>();
  at::Tensor weighed = logits / options.temperature;
  if (options.top_k > 0 && options.top_k < weighed.numel()) {
    const at::Tensor least = std::get<0>(weighed.topk(options.top_k)).min();
    weighed = weighed.masked_fill(weighed < least, -std::numeric_limits<double>::infinity());
  }
  return at::multinomial(at::softmax(weighed, -1), 1, /*replacement=*/false, random).item<int64_t>();
}

}  // namespace

void generate(TransformerLM& model, std::vector<int64_t> prompt, const GenerateOptions& options,
              const std::function<void(int64_t token)>& on_token) {
  const at::NoGradGuard no_grad;
  at::Generator random = at::detail::createCPUGenerator(options.seed);
  for (int64_t i = 0; i < options.count; ++i) {
    const auto seen = static_cast<int64_t>(std::min(prompt.size(), static_cast<size_t>(options.context)));
    const at::Tensor tokens = at::tensor(prompt, at::kLong).narrow(0, static_cast<int64_t>(prompt.size()) - seen, seen).unsqueeze(0);
    const at::Tensor logits = model->forward(tokens).select(1, seen - 1).squeeze(0).to(at::kFloat);
    prompt.push_back(draw(logits, options, random));
    on_token(prompt.back());
  }
}

}  // namespace firkin
