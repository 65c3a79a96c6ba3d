// Which windows of the data each training step sees: every window once before any comes again, in an order drawn from the seed.
//
//   const SampleOrder order{.first = 0, .tokens = data.size(), .sequence = 128, .seed = 1};
//   const int64_t place = window_start(order, step * global_batch + row);
#pragma once

#include <cstdint>

namespace firkin {

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

}  // namespace firkin
