// What a training reads: a file of tokens, the part of it that is trained on, and the part at its end that is held for evaluation.
#pragma once

#include <cstdint>
#include <memory>

#include "train/sample_order.h"
#include "train/token_file.h"
#include "workload/text_data.h"

namespace firkin {

struct TrainingData {
  std::shared_ptr<const TokenFile> file;
  SampleOrder training;
  int64_t held_first = 0;    // token of the held part
  int64_t held_windows = 0;  // windows in it, which do not overlap; 0: nothing is held
};

// held_share: of the tokens, 0 for none; rounded down to whole windows. Throws InputError unless what is left holds a window, and, for a
// share above 0, the held part too.
TrainingData split_data(std::shared_ptr<const TokenFile> file, int64_t sequence, uint64_t seed, double held_share);

// Samples [first, first + rows) of the training order.
TokenBatch training_batch(const TrainingData& data, int64_t first, int64_t rows);

// Windows [first, first + rows) of the held part, in the order of the file.
TokenBatch held_batch(const TrainingData& data, int64_t first, int64_t rows);

}  // namespace firkin
