#include "step_agreement.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int64_t kStates = 4;  // a slot holds step * kStates + state

}  // namespace

StepAgreement::StepAgreement(ProcessGroup group, size_t parameters)
    : group_(std::move(group)), slots_(at::zeros({group_.size + static_cast<int64_t>(parameters)}, at::kLong)) {}

void StepAgreement::launch(int64_t step, RankState state, const std::vector<bool>& used) {
  auto* slots = slots_.mutable_data_ptr<int64_t>();
  std::fill(slots, slots + slots_.numel(), 0);
  slots[group_.rank] = step * kStates + static_cast<int64_t>(state);
  for (int64_t i = group_.size; i < slots_.numel(); ++i) slots[i] = used[static_cast<size_t>(i - group_.size)] ? 1 : 0;
  work_ = start_all_reduce(group_, slots_);
}

RankState StepAgreement::state_of(int rank) const {
  return static_cast<RankState>(slots_.const_data_ptr<int64_t>()[rank] % kStates);
}

int64_t StepAgreement::step_of(int rank) const {
  return slots_.const_data_ptr<int64_t>()[rank] / kStates;
}

void StepAgreement::wait(c10::function_ref<std::string()> what) {
  firkin::wait(group_, work_, what);
  work_.reset();
  for (int rank = 1; rank < group_.size; ++rank) {
    if (step_of(rank) == step_of(0)) continue;
    throw RuntimeError(
        fmt::format("the ranks are in different steps: rank 0 in step {}, rank {} in step {}", step_of(0), rank, step_of(rank)));
  }
}

int StepAgreement::ranks_with_data() const {
  int count = 0;
  for (int rank = 0; rank < group_.size; ++rank) count += has_data(rank) ? 1 : 0;
  return count;
}

int StepAgreement::first_in(RankState state) const {
  int rank = 0;
  while (rank < group_.size && state_of(rank) != state) ++rank;
  return rank;
}

int StepAgreement::first_with_data() const {
  return first_in(RankState::kWithData);
}

int StepAgreement::first_failed() const {
  return first_in(RankState::kFailed);
}

bool StepAgreement::is_used(size_t parameter) const {
  return slots_.numel() == group_.size || slots_.const_data_ptr<int64_t>()[group_.size + static_cast<int64_t>(parameter)] > 0;
}

std::string StepAgreement::exchange_reason(const std::string& ours, int root) {
  constexpr int64_t kLongest = 1000;
  at::Tensor text = at::zeros({kLongest + 1}, at::kByte);
  if (group_.rank == root) std::memcpy(text.mutable_data_ptr(), ours.data(), std::min<size_t>(ours.size(), kLongest));
  broadcast(group_, {text}, root);
  return static_cast<const char*>(text.const_data_ptr());
}

}  // namespace firkin
