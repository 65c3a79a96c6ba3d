#include "bench/known_sums.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int64_t kPeriod = 4093;  // a prime, so that chunks of a power of two never begin alike

std::span<float> elements_of(const at::Tensor& buffer) {
  if (buffer.scalar_type() != at::kFloat || !buffer.is_contiguous()) throw InputError("known sums: expected contiguous float32 values");
  return {buffer.data_ptr<float>(), static_cast<size_t>(buffer.numel())};
}

}  // namespace

void fill_with_known_values(const at::Tensor& buffer, int rank) {
  if (!buffer.is_cpu()) {
    const at::Tensor values = at::empty(buffer.sizes(), buffer.scalar_type());
    fill_with_known_values(values, rank);
    buffer.copy_(values);
    return;
  }
  std::span<float> rest = elements_of(buffer);
  while (!rest.empty()) {
    const std::span<float> period = rest.first(std::min<size_t>(rest.size(), kPeriod));
    for (size_t i = 0; i < period.size(); ++i) period[i] = static_cast<float>(static_cast<int64_t>(i) + rank + 1);
    rest = rest.subspan(period.size());
  }
}

int64_t count_wrong(const at::Tensor& buffer, int world_size) {
  if (world_size > kMostSummedRanks) {
    throw InputError(fmt::format("sums over {} ranks; expected at most {}, whose float32 sums are exact", world_size, kMostSummedRanks));
  }
  const int64_t ranks = world_size;
  const int64_t of_ranks = ranks * (ranks + 1) / 2;
  int64_t wrong = 0;
  const at::Tensor values = buffer.cpu();
  std::span<const float> rest = elements_of(values);
  while (!rest.empty()) {
    const std::span<const float> period = rest.first(std::min<size_t>(rest.size(), kPeriod));
    for (size_t i = 0; i < period.size(); ++i) {
      wrong += period[i] != static_cast<float>(ranks * static_cast<int64_t>(i) + of_ranks) ? 1 : 0;
    }
    rest = rest.subspan(period.size());
  }
  return wrong;
}

}  // namespace firkin
