// Buffers whose sum over the ranks is known exactly, element by element: what an all-reduce must give.
//
//   fill_with_known_values(buffer, group.rank);
//   all_reduce(group, buffer);
//   count_wrong(buffer, group.size);  // 0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace firkin {

// Beyond this many ranks the sums no longer fit into the 24 bits that float32 holds exactly.
inline constexpr int kMostSummedRanks = 2048;

// Element i of rank r becomes (i mod 4093) + r + 1. Whole numbers, so that sums in any order are exact; different between ranks, so that a
// rank that is left out or counted twice shows; different between neighbours, so that shifted data shows.
// buffer: contiguous float32. Throws InputError for anything else.
void fill_with_known_values(const at::Tensor& buffer, int rank);

// How many elements differ from the sum over ranks 0 .. world_size - 1. Throws InputError for more than kMostSummedRanks, and for a
// buffer that is not contiguous float32.
int64_t count_wrong(const at::Tensor& buffer, int world_size);

}  // namespace firkin
