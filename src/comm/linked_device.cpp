#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <utility>

#include "linked_backend.h"

namespace firkin {
namespace {

using c10::impl::VirtualGuardImpl;

// Complete for the CPU at once, and for a stream when that has waited for it.
class LinkedDeviceWork final : public c10d::Work {
 public:
  // The current stream must be the link's.
  LinkedDeviceWork(c10d::OpType type, std::vector<at::Tensor> tensors, const c10::Stream& link)
      : c10d::Work(0, type),
        tensors_(std::move(tensors)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector{link.device()})),
        end_(link.device_type()) {
    end_.record(link);
    future_->markCompleted(c10::IValue(tensors_));
  }

  bool isCompleted() override { return end_.query(); }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override { future_->wait(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::Event end_;
};

class LinkedDevice final : public c10d::Backend {
 public:
  LinkedDevice(ModelledLink link, c10::Device device, std::unique_ptr<DeviceTimer> timer)
      : c10d::Backend(0, 1),
        link_(std::move(link)),
        device_(device),
        timer_(std::move(timer)),
        joining_(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        carrying_(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        order_(device.type()) {}

  const std::string getBackendName() const override { return "modelled link"; }  // NOLINT(readability-const-return-type)

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& /*options*/) override {
    return start(c10d::OpType::ALLREDUCE, tensors, all_reduce_time(link_, bytes_of(tensors)));
  }

  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& /*options*/) override {
    return start(c10d::OpType::BROADCAST, tensors, broadcast_time(link_, bytes_of(tensors)));
  }

  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& /*output_split*/, std::vector<int64_t>& /*input_split*/,
                     const c10d::AllToAllOptions& /*options*/) override {
    return start(c10d::OpType::ALLTOALL_BASE, {output}, share_time(link_, bytes_of({input})), input);
  }

  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& /*options*/) override {
    return start(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, share_time(link_, bytes_of({input})), input);
  }

  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& /*options*/) override {
    return start(c10d::OpType::_ALLGATHER_BASE, {output}, share_time(link_, bytes_of({output})), input);
  }

  Work allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions& /*options*/) override {
    return start(c10d::OpType::ALLGATHER, outputs.at(0), share_time(link_, bytes_of(outputs[0])), inputs.at(0));
  }

 private:
  void let_wait(const c10::Stream& later, const c10::Stream& earlier) {
    order_.record(earlier);
    order_.block(later);
  }

  // input: copied into the only tensor, unless it is undefined or has the same memory.
  Work start(c10d::OpType type, const std::vector<at::Tensor>& tensors, const LinkTime& time, const at::Tensor& input = {}) {
    const std::lock_guard lock(mutex_);
    const c10::DeviceGuard device(device_);
    const at::NoGradGuard no_grad;
    const VirtualGuardImpl guard(device_.type());
    let_wait(joining_, guard.getStream(device_));
    DeviceTimer::Moment all_arrived_at = 0;
    {
      const c10::StreamGuard joining(joining_);  // not the link's, which may be busy with the collective before
      all_arrived_at = timer_->note();
    }
    let_wait(carrying_, joining_);
    const c10::StreamGuard carrying(carrying_);
    if (input.defined() && !input.is_alias_of(tensors[0])) {
      tensors[0].copy_(input);
      for (const at::Tensor& used : {tensors[0], input}) guard.recordDataPtrOnStream(used.storage().data_ptr(), carrying_);
    }
    std::optional<DeviceTimer::After> gap;
    if (last_end_) gap = {*last_end_, time.gap_s};
    last_end_ = timer_->wait({all_arrived_at, time.alone_s}, gap);
    return c10::make_intrusive<LinkedDeviceWork>(type, tensors, carrying_);
  }

  ModelledLink link_;
  c10::Device device_;
  std::mutex mutex_;  // guards what follows
  std::unique_ptr<DeviceTimer> timer_;
  c10::Stream joining_, carrying_;
  c10::Event order_;
  std::optional<DeviceTimer::Moment> last_end_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_linked_device(const ModelledLink& link, c10::Device device, std::unique_ptr<DeviceTimer> timer) {
  return c10::make_intrusive<LinkedDevice>(link, device, std::move(timer));
}

}  // namespace firkin
