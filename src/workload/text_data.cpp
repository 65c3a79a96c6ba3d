#include "workload/text_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <random>

#include "firkin/base/error.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

void check_positive(const char* what, int64_t value) {
  if (value < 1) throw InputError(fmt::format("{} is {}; expected at least 1", what, value));
}

void check_shape(const BatchShape& shape, int64_t text_bytes) {
  check_positive("local_batch", shape.local_batch);
  check_positive("sequence_length", shape.sequence_length);
  check_positive("world_size", shape.world_size);
  if (shape.rank < 0 || shape.rank >= shape.world_size) {
    throw InputError(fmt::format("rank is {}; expected 0 to {}", shape.rank, shape.world_size - 1));
  }
  if (shape.sequence_length >= text_bytes) {
    throw InputError(fmt::format("{} bytes of text; expected more than a sequence of {}", text_bytes, shape.sequence_length));
  }
}

}  // namespace

TokenBatch on_device(const TokenBatch& batch, c10::Device device) {
  return {batch.tokens.to(device), batch.targets.to(device)};
}

TextData::TextData(const std::filesystem::path& file, int64_t sequence_length) {
  check_positive("sequence_length", sequence_length);
  std::string text = read_file(file);
  if (static_cast<int64_t>(text.size()) <= sequence_length) {
    throw InputError(fmt::format("{}: {} bytes of text; expected more than a sequence of {}", file.string(), text.size(), sequence_length));
  }
  tokens_ = at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte).clone();
}

TokenBatch TextData::batch(const BatchShape& shape, uint64_t seed, int64_t step) const {
  check_shape(shape, tokens_.numel());
  if (step < 0) throw InputError(fmt::format("step is {}; expected at least 0", step));
  const int64_t rows = shape.local_batch * shape.world_size;
  const auto places = static_cast<uint64_t>(tokens_.numel() - shape.sequence_length);
  std::seed_seq seeds{seed, seed >> 32, static_cast<uint64_t>(step)};
  std::mt19937_64 random(seeds);
  at::Tensor windows = at::empty({shape.local_batch, shape.sequence_length + 1}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const auto place = static_cast<int64_t>(random() % places);
    const int64_t local_row = row - shape.rank * shape.local_batch;
    if (local_row < 0 || local_row >= shape.local_batch) continue;
    windows[local_row].copy_(tokens_.narrow(0, place, shape.sequence_length + 1));
  }
  return {windows.narrow(1, 0, shape.sequence_length), windows.narrow(1, 1, shape.sequence_length)};
}

}  // namespace firkin
