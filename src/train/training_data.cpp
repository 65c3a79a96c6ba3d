#include "train/training_data.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// start_of: the first token of row 0, 1, ...
template <typename StartOf>
TokenBatch batch_of(const TrainingData& data, int64_t rows, StartOf start_of) {
  const int64_t width = data.training.sequence + 1;
  const at::Tensor windows = at::empty({rows, width}, at::kLong);
  int64_t* out = windows.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) data.file->read(start_of(row), {out + row * width, static_cast<size_t>(width)});
  return {windows.narrow(1, 0, width - 1), windows.narrow(1, 1, width - 1)};
}

}  // namespace

TrainingData split_data(std::shared_ptr<const TokenFile> file, int64_t sequence, uint64_t seed, double held_share) {
  const int64_t tokens = file->size();
  TrainingData data{.file = std::move(file), .training = {.first = 0, .tokens = tokens, .sequence = sequence, .seed = seed}};
  windows_per_pass(data.training);
  if (held_share <= 0) return data;
  const auto held = static_cast<int64_t>(static_cast<double>(tokens) * held_share);
  data.held_windows = (held - 1) / sequence;
  data.training.tokens = tokens - data.held_windows * sequence - 1;
  data.held_first = data.training.tokens;
  if (data.held_windows < 1 || data.training.tokens <= sequence) {
    throw InputError(fmt::format("{}: {} tokens, of which {} are held for evaluation; expected more than a sequence of {} in both parts",
                                 data.file->path().string(), tokens, held, sequence));
  }
  return data;
}

TokenBatch training_batch(const TrainingData& data, int64_t first, int64_t rows) {
  return batch_of(data, rows, [&](int64_t row) { return window_start(data.training, first + row); });
}

TokenBatch held_batch(const TrainingData& data, int64_t first, int64_t rows) {
  return batch_of(data, rows, [&](int64_t row) { return data.held_first + (first + row) * data.training.sequence; });
}

}  // namespace firkin
