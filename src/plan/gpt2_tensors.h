// The parameters of the four GPT-2 models, without building one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace firkin {

// Radford et al. 2019, table 2; vocabulary and context from the released checkpoints.
struct Gpt2Size {
  const char* name;
  int64_t width;
  int64_t blocks;

  static constexpr int64_t kVocabulary = 50257;
  static constexpr int64_t kContext = 1024;
};

// Throws InputError, which lists the names, for any other.
const Gpt2Size& find_gpt2(const std::string& name);

struct ParameterCount {
  std::string name;
  int64_t parameters = 0;
};

// In registration order, with the names that model/ gives them.
std::vector<ParameterCount> gpt2_block(const Gpt2Size& size, int64_t index);
std::vector<ParameterCount> gpt2_final_norm(const Gpt2Size& size);
ParameterCount gpt2_token_embedding(const Gpt2Size& size);  // tied: also the LM head
ParameterCount gpt2_position_embedding(const Gpt2Size& size);

int64_t total_parameters(const std::vector<ParameterCount>& tensors);

}  // namespace firkin
