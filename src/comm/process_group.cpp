#include "firkin/comm/process_group.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "firkin/base/units.h"
#include "group_failure.h"
#include "group_state.h"
#include "missing_ranks.h"
#include "nccl_backend.h"

namespace firkin {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWaitSlice{1000};      // of waiting, between two looks whether another rank has given up
constexpr milliseconds kStorePatience{2000};  // for the answer to such a look
constexpr milliseconds kTimeoutGrace{1000};   // the backend's own timeout comes first where it can: it says more

// Whether the work has completed by then; false: an error, or not yet, and `error` says it.
bool completes(const Work& work, milliseconds limit, std::string& error) {
  try {
    work->wait(limit);
    return true;
  } catch (const std::exception& thrown) {
    error = thrown.what();
    return false;
  }
}

// The backend of the tensor itself, not the dispatcher's operator: a few microseconds less for each call.
c10::intrusive_ptr<c10d::Backend> backend_for(const ProcessGroup& group, c10::DeviceType device) {
  throw_if_lost(group);
  return group.c10d->getBackend(device);
}

}  // namespace

bool can_carry(const ProcessGroup& group, c10::DeviceType device) {
  const std::vector<c10::Device> devices = group.c10d->getDeviceTypes();
  return std::ranges::any_of(devices, [device](const c10::Device& each) { return each.type() == device; });
}

Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  if (group.timeout) options.timeout = *group.timeout;
  return backend_for(group, tensors[0].device().type())->allreduce(tensors, options);
}

Work start_broadcast(const ProcessGroup& group, at::Tensor tensor, int root) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  if (group.timeout) options.timeout = *group.timeout;
  return backend_for(group, tensors[0].device().type())->broadcast(tensors, options);
}

void wait(const ProcessGroup& group, const Work& work, c10::function_ref<std::string()> what) {
  std::string error;
  if (is_nccl_work(*work)) {
    // Without a timeout, with which NCCL would block this thread and not only the stream.
    if (completes(work, kNoTimeout, error)) return;
    lose_group(group, what(), error, "NCCL");
  }
  const milliseconds timeout = group.timeout.value_or(group.state->timeout);
  const milliseconds limit = timeout + kTimeoutGrace;
  for (milliseconds waited{0}; waited < limit;) {
    const milliseconds slice = group.state->lost() ? milliseconds(1) : std::min(kWaitSlice, limit - waited);
    if (completes(work, slice, error)) return;
    if (work->isCompleted()) {
      if (completes(work, kNoTimeout, error)) return;  // just now
      lose_group(group, what(), error);
    }
    waited += slice;
    throw_if_lost(group);
    if (someone_failed(group.state->store, kStorePatience)) lose_group(group, what(), "");
  }
  lose_group(group, what(), "not complete after " + format_seconds(static_cast<double>(limit.count()) / 1000));
}

void wait(const ProcessGroup& group, const Work& work, const char* what) {
  wait(group, work, [what] { return std::string(what); });
}

void all_reduce(const ProcessGroup& group, at::Tensor tensor) {
  wait(group, start_all_reduce(group, std::move(tensor)), "an all-reduce");
}

void broadcast(const ProcessGroup& group, std::vector<at::Tensor> tensors, int root) {
  for (at::Tensor& tensor : tensors) wait(group, start_broadcast(group, std::move(tensor), root), "a broadcast");
}

void barrier(const ProcessGroup& group) {
  c10d::BarrierOptions options;
  if (group.timeout) options.timeout = *group.timeout;
  wait(group, backend_for(group, c10::DeviceType::CPU)->barrier(options), "the barrier");
}

std::vector<std::vector<double>> all_gather(const ProcessGroup& group, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  at::Tensor table = at::zeros({group.size, count}, at::kDouble);
  std::copy(values.begin(), values.end(), table[group.rank].data_ptr<double>());
  all_reduce(group, table);
  std::vector<std::vector<double>> rows;
  for (int rank = 0; rank < group.size; ++rank) {
    const double* row = table[rank].data_ptr<double>();
    rows.emplace_back(row, row + count);
  }
  return rows;
}

}  // namespace firkin
