#include "ranks_with_data.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace firkin {

void RanksWithData::announce(const ProcessGroup& group, bool we_have) {
  has_data_ = at::zeros({group.size}, at::kInt);
  has_data_.mutable_data_ptr<int>()[group.rank] = we_have ? 1 : 0;
  work_ = start_all_reduce(group, has_data_);
}

void RanksWithData::complete() {
  if (work_ == nullptr) return;
  wait(work_, "exchange of which ranks have data");
  work_.reset();
}

int RanksWithData::count() {
  complete();
  const int* flags = has_data_.const_data_ptr<int>();
  return static_cast<int>(std::count(flags, flags + has_data_.numel(), 1));
}

int RanksWithData::first() {
  complete();
  const int* flags = has_data_.const_data_ptr<int>();
  return static_cast<int>(std::find(flags, flags + has_data_.numel(), 1) - flags);
}

}  // namespace firkin
