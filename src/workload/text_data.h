// Text as training data: the bytes of a file are the tokens.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>

namespace firkin {

// Tokens to read and, one position later, the tokens to predict. Both int64 [batch, sequence].
struct TokenBatch {
  at::Tensor tokens;
  at::Tensor targets;
};

// The batch on `device`. Copies nothing if it is there already.
TokenBatch on_device(const TokenBatch& batch, c10::Device device);

// Which windows of the text a rank gets in a step. Together the ranks' batches are the global batch, which does not
// depend on the world size: its row rank * local_batch + i is row i of the rank's batch.
struct BatchShape {
  int64_t local_batch = 1;
  int64_t sequence_length = 1;
  int rank = 0;
  int world_size = 1;
};

class TextData {
 public:
  // Throws InputError when the file cannot be read, is shorter than a sequence of `sequence_length` and the token after
  // it, or sequence_length is not positive.
  TextData(const std::filesystem::path& file, int64_t sequence_length);

  static constexpr int64_t kVocabSize = 256;

  // Windows at places drawn from seed and step alone. Thread-safe. Throws InputError unless the shape's sizes are
  // positive, its rank is below its world size, its sequence fits into the text, and step is not negative.
  TokenBatch batch(const BatchShape& shape, uint64_t seed, int64_t step) const;

  int64_t size() const { return tokens_.numel(); }  // bytes

 private:
  at::Tensor tokens_;  // uint8 [size]
};

}  // namespace firkin
