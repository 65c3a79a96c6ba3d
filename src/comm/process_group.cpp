#include "firkin/comm/process_group.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "crossed_waits.h"
#include "firkin/base/units.h"
#include "group_failure.h"
#include "group_state.h"

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

// A collective of NCCL. A wait with a timeout would block the calling thread there, and could abort the communicator: it is never one,
// whoever asks. Known by its backend's name, so that it does not matter what Firkin was built with.
class StreamWork final : public c10d::Work {
 public:
  explicit StreamWork(firkin::Work inner) : inner_(std::move(inner)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(milliseconds /*timeout*/) override { return inner_->wait(kNoTimeout); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  firkin::Work inner_;
};

bool is_stream_work(const Work& work) {
  return dynamic_cast<const StreamWork*>(work.get()) != nullptr;
}

// start(backend), of the tensor's own backend and not through the dispatcher's operator: a few microseconds less for each call.
template <typename Start>
Work start_on(const ProcessGroup& group, c10::DeviceType device, Start start) {
  throw_if_lost(group);
  const auto backend = group.c10d->getBackend(device);
  Work work = start(*backend);
  if (device == c10::DeviceType::CPU || backend->getBackendName() != "nccl") return work;
  return c10::make_intrusive<StreamWork>(std::move(work));
}

// What this rank tells the others when it has waited for long.
std::optional<WaitNote> wait_note(const ProcessGroup& group) {
  if (!group.place) return std::nullopt;
  auto begun = group.state->steps_begun();
  if (!begun) return std::nullopt;
  return WaitNote{*group.place, std::move(*begun)};
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
  return start_on(group, tensors[0].device().type(), [&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
}

Work start_broadcast(const ProcessGroup& group, at::Tensor tensor, int root) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  if (group.timeout) options.timeout = *group.timeout;
  return start_on(group, tensors[0].device().type(), [&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
}

void wait(const ProcessGroup& group, const Work& work, c10::function_ref<std::string()> what) {
  std::string error;
  if (is_stream_work(work)) {
    if (completes(work, kNoTimeout, error)) return;
    lose_group(group, what(), error, "NCCL");
  }
  const milliseconds timeout = group.timeout.value_or(group.state->timeout);
  const milliseconds limit = timeout + kTimeoutGrace;
  int64_t looks = 0;
  for (milliseconds waited{0}; waited < limit;) {
    const milliseconds slice = group.state->lost() ? milliseconds(1) : std::min(kWaitSlice, limit - waited);
    if (completes(work, slice, error)) return;
    if (work->isCompleted()) {
      if (completes(work, kNoTimeout, error)) return;  // just now
      lose_group(group, what(), error);
    }
    waited += slice;
    throw_if_lost(group);
    const Look look = look_around(group.state->store, kStorePatience,
                                  {.rank = group.rank, .size = group.size, .note = wait_note(group), .turn = looks++});
    if (!look.crossed.empty()) lose_group_as(group, look.crossed);
    if (look.failed) lose_group(group, what(), "");
  }
  lose_group(group, what(), "not complete after " + format_seconds(static_cast<double>(limit.count()) / 1000));
}

void note_step(const ProcessGroup& group, int64_t wrapper, int64_t step) {
  group.state->note_step(wrapper, step);
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
  wait(group, start_on(group, c10::DeviceType::CPU, [&](c10d::Backend& backend) { return backend.barrier(options); }), "the barrier");
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
