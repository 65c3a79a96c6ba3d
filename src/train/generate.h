// Text from a trained model: one token after another.
//
//   generate(model, tokens_of("The cooper"), {.count = 200, .temperature = 0.8}, [](int64_t token) { std::putchar(token); });
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/transformer.h"

namespace firkin {

struct GenerateOptions {
  int64_t count = 200;       // tokens
  double temperature = 0.8;  // logits are divided by it; 0: always the likeliest token
  int64_t top_k = 0;         // only among the k likeliest; 0: among all
  int64_t context = 0;       // tokens that the model looks back at; at most its context_length
  uint64_t seed = 0;
};

// Calls `on_token` with each new token. The prompt must not be empty. LibTorch's default generator is left as it was.
void generate(TransformerLM& model, std::vector<int64_t> prompt, const GenerateOptions& options,
              const std::function<void(int64_t token)>& on_token);

}  // namespace firkin
