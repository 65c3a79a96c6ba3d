#include "checked_device.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace firkin::streams {
namespace {

class CheckedWork final : public c10d::Work {
 public:
  // The current stream must be the one of the collective.
  CheckedWork(firkin::Work inner, const c10::Stream& stream, const std::vector<at::Tensor>& written)
      : inner_(std::move(inner)),
        device_(stream.device()),
        end_(Clocks::all().now(key_of(stream))),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector{device_})) {
    future_->markCompleted(c10::IValue(written));  // as NCCL's: streams wait for it, the CPU does not
  }
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  bool wait(std::chrono::milliseconds timeout) override {
    inner_->wait(timeout);  // the data move eagerly; a GPU's would only be queued
    Clocks::all().learn(key_of(current_stream_of(device_)), end_);
    return true;
  }

 private:
  firkin::Work inner_;
  c10::Device device_;
  Clock end_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class CheckedBackend final : public c10d::Backend {
 public:
  CheckedBackend(c10::intrusive_ptr<c10d::Backend> gloo, c10::Device device)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), device_(device), stream_(new_stream(device)) {}

  const std::string getBackendName() const override { return "checked"; }  // NOLINT(readability-const-return-type)

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return start("all-reduce", {}, tensors, [&](std::vector<at::Tensor>& on_cpu) { return gloo_->allreduce(on_cpu, options); });
  }
  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const bool writes = options.rootRank != getRank();
    const std::vector<at::Tensor> none;
    return start("broadcast", writes ? none : tensors, writes ? tensors : none,
                 [&](std::vector<at::Tensor>& on_cpu) { return gloo_->broadcast(on_cpu, options); });
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& from, std::vector<int64_t>& to,
                     const c10d::AllToAllOptions& options) override {
    return start("all-to-all", {input}, {output},
                 [&](std::vector<at::Tensor>& on_cpu) { return gloo_->alltoall_base(on_cpu[1], on_cpu[0], from, to, options); });
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return start("reduce-scatter", {input}, {output},
                 [&](std::vector<at::Tensor>& on_cpu) { return gloo_->_reduce_scatter_base(on_cpu[1], on_cpu[0], options); });
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return start("all-gather", {input}, {output},
                 [&](std::vector<at::Tensor>& on_cpu) { return gloo_->_allgather_base(on_cpu[1], on_cpu[0], options); });
  }

 private:
  // launch: gets what is read, and then what is written.
  template <typename Launch>
  Work start(const char* name, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written, Launch launch) {
    wait_for(stream_, current_stream_of(device_));
    const c10::StreamGuard guard(stream_);
    begin_operation(device_, name);
    std::vector<at::Tensor> on_cpu;
    for (const auto* tensors : {&read, &written}) {
      for (const at::Tensor& tensor : *tensors) {
        touch(tensor, /*writes=*/tensors == &written);
        on_cpu.push_back(alias_on_cpu(tensor));
      }
    }
    Work inner = launch(on_cpu);
    return c10::make_intrusive<CheckedWork>(std::move(inner), stream_, written);
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::Device device_;
  c10::Stream stream_;
};

ProcessGroup with_backend(const ProcessGroup& group, c10::Device device, const c10::intrusive_ptr<c10d::Backend>& backend) {
  using Type = c10d::ProcessGroup::BackendType;
  auto both = c10::make_intrusive<c10d::ProcessGroup>(group.store, group.rank, group.size);
  both->setBackend(c10::kCPU, Type::GLOO, group.c10d->getBackend(c10::kCPU));
  both->setBackend(c10::kPrivateUse1, Type::CUSTOM, backend);
  return adopt_process_group(both, {.device = device, .timeout = std::chrono::seconds(60)});
}

}  // namespace

CheckedTimer::CheckedTimer(c10::Device device)
    : device_(device), moments_(at::empty({kMoments}, at::TensorOptions(at::kLong).device(device))) {}

DeviceTimer::Moment CheckedTimer::stamp() {
  begin_operation(device_, "note");
  return write(Clocks::all().done_ns(key_of(current_stream_of(device_))));
}

DeviceTimer::Moment CheckedTimer::wait(After first, std::optional<After> second) {
  begin_operation(device_, "wait");
  int64_t until = read(first);
  if (second) until = std::max(until, read(*second));
  Clocks::all().not_done_before(key_of(current_stream_of(device_)), until);
  return write(until);
}

int64_t CheckedTimer::read(After after) const {
  touch(moments_.narrow(0, after.moment, 1), /*writes=*/false);
  return ns(after.moment) + std::llround(after.seconds * 1e9);
}

DeviceTimer::Moment CheckedTimer::write(int64_t value) {
  touch(moments_.narrow(0, next_, 1), /*writes=*/true);
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.recordDataPtrOnStream(moments_.storage().data_ptr(), current_stream_of(device_));
  moments_.mutable_data_ptr<int64_t>()[next_] = value;
  return next_++;
}

ProcessGroup with_linked_device(const ProcessGroup& group, c10::Device device, const ModelledLink& link,
                                std::unique_ptr<DeviceTimer> timer) {
  ProcessGroup linked = with_backend(group, device, make_linked_device(link, device, std::move(timer)));
  linked.link = describe(link);
  linked.link_world = link.world;
  return linked;
}

ProcessGroup with_checked_device(const ProcessGroup& group, c10::Device device) {
  return with_backend(group, device, c10::make_intrusive<CheckedBackend>(group.c10d->getBackend(c10::kCPU), device));
}

ProcessGroup with_checked_device(const ProcessGroup& group) {
  return with_checked_device(group, checked_device(group.rank));
}

}  // namespace firkin::streams
