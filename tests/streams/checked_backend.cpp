#include "checked_backend.h"

#include <c10/core/StreamGuard.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "checked_device.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace firkin::streams {
namespace {

class CheckedWork final : public c10d::Work {
 public:
  CheckedWork(firkin::Work inner, c10::Device device, Clock end) : inner_(std::move(inner)), device_(device), end_(std::move(end)) {}
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    inner_->wait(timeout);  // the data move eagerly; a GPU's would only be queued
    Clocks::all().learn(key_of(current_stream_of(device_)), end_);
    return true;
  }

 private:
  firkin::Work inner_;
  c10::Device device_;
  Clock end_;
};

class CheckedBackend final : public c10d::Backend {
 public:
  CheckedBackend(c10::intrusive_ptr<c10d::Backend> gloo, c10::Device device)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), device_(device), stream_(new_stream(device)) {}

  const std::string getBackendName() const override { return "checked"; }  // NOLINT(readability-const-return-type)

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return start(tensors, "all-reduce", true, [&](std::vector<at::Tensor>& on_cpu) { return gloo_->allreduce(on_cpu, options); });
  }
  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const bool writes = options.rootRank != getRank();
    return start(tensors, "broadcast", writes, [&](std::vector<at::Tensor>& on_cpu) { return gloo_->broadcast(on_cpu, options); });
  }

 private:
  template <typename Launch>
  Work start(const std::vector<at::Tensor>& tensors, const char* name, bool writes, Launch launch) {
    wait_for(stream_, current_stream_of(device_));
    const c10::StreamGuard guard(stream_);
    begin_operation(device_, name);
    std::vector<at::Tensor> on_cpu;
    for (const at::Tensor& tensor : tensors) {
      touch(tensor, writes);
      on_cpu.push_back(alias_on_cpu(tensor));
    }
    Work inner = launch(on_cpu);
    return c10::make_intrusive<CheckedWork>(std::move(inner), device_, Clocks::all().now(key_of(stream_)));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::Device device_;
  c10::Stream stream_;
};

}  // namespace

ProcessGroup with_checked_device(const ProcessGroup& group, c10::Device device) {
  using Type = c10d::ProcessGroup::BackendType;
  auto both = c10::make_intrusive<c10d::ProcessGroup>(group.store, group.rank, group.size);
  const auto gloo = group.c10d->getBackend(c10::kCPU);
  both->setBackend(c10::kCPU, Type::GLOO, gloo);
  both->setBackend(c10::kPrivateUse1, Type::CUSTOM, c10::make_intrusive<CheckedBackend>(gloo, device));
  return adopt_process_group(both, {.device = device, .timeout = std::chrono::seconds(60)});
}

ProcessGroup with_checked_device(const ProcessGroup& group) {
  return with_checked_device(group, checked_device(group.rank));
}

}  // namespace firkin::streams
