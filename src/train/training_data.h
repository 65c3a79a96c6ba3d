// What is trained on: tokens in a file, the order in which samples are taken, and a part that is held out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "workload/text_data.h"

namespace firkin {

// A file whose name ends in .bin holds tokens of 16 bits (parse_token_layout()); any other is text, whose bytes are the tokens.
//
//   const TokenFile data("book.txt");
//   data.read(100, window);   // tokens 100, 101, ...
//
// The file is mapped into memory, not read: one larger than memory is fine, and ranks on one machine share its pages. Thread-safe. The file
// must not become shorter meanwhile.
class TokenFile {
 public:
  // Throws InputError when the file cannot be read or is empty, and as parse_token_layout().
  explicit TokenFile(const std::filesystem::path& file);

  int64_t size() const { return size_; }  // tokens
  bool is_text() const { return token_bytes_ == 1; }
  const std::filesystem::path& path() const { return path_; }

  // Tokens [first, first + out.size()), which must lie in the file.
  void read(int64_t first, std::span<int64_t> out) const;

  // Reads all of it. Throws InputError, which names the first token that does not fit, unless every token is below `vocab_size`.
  void check_vocabulary(int64_t vocab_size) const;

 private:
  int64_t token(int64_t place) const;

  std::filesystem::path path_;
  std::shared_ptr<const std::byte> map_;
  const std::byte* tokens_ = nullptr;
  int64_t token_bytes_ = 1;
  int64_t size_ = 0;
};

// Which windows of the data each training step sees: every window once before any comes again, in an order drawn from the seed.
//
//   const SampleOrder order{.first = 0, .tokens = data.size(), .sequence = 128, .seed = 1};
//   const int64_t place = window_start(order, step * global_batch + row);
//
// Plain data: the samples of a step depend on nothing else, the number of ranks least of all.
struct SampleOrder {
  int64_t first = 0;     // token of the part that is trained on
  int64_t tokens = 0;    // of that part
  int64_t sequence = 1;  // tokens that a window reads; it predicts each next one, so it spans one more
  uint64_t seed = 0;
};

// Windows in one pass over the part. Those of one pass do not overlap (the last token of one is the first of the next). Throws InputError
// unless the sequence is positive and at least one window fits.
int64_t windows_per_pass(const SampleOrder& order);

// The first token of sample 0, 1, 2, ...: samples [p * windows, (p + 1) * windows) are pass p, shuffled anew, and moved by up to what
// the windows leave over. O(1): a pass is shuffled by a Feistel network over the window numbers, stepped until it hits one (Black and
// Rogaway 2002, "Ciphers with arbitrary finite domains": cycle walking). Throws as windows_per_pass().
int64_t window_start(const SampleOrder& order, int64_t sample);

// Numbers that look drawn at random, from numbers that do not (SplitMix64; Steele, Lea and Flood 2014).
uint64_t mixed(uint64_t value);

// The part of a file that is trained on, and the part at its end that is held for evaluation.
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
