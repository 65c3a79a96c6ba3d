// The backend of the process group that firkin.init_modelled_link() makes.
#pragma once

#include <pybind11/chrono.h>

#include "comm/backends.h"
#include "comm/device_time.h"

namespace firkin::python {

// One rank that stands for one of link.world. PyTorch 2.13 wants one backend for all devices, so this passes CPU
// tensors to a linked Gloo that has nobody to send to, and a GPU's to a linked device. Collectives without a method
// here are refused. Thread-safe.
class LinkedRank final : public c10d::Backend {
 public:
  // Throws InputError for a GPU where make_device_timer() does.
  LinkedRank(const ModelledLink& link, const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout,
             std::optional<c10::Device> gpu)
      : c10d::Backend(0, 1), cpu_(make_linked_backend(make_gloo_backend(store, 0, 1, "127.0.0.1", timeout), link)) {
    if (gpu) gpu_ = make_linked_device(link, *gpu, make_device_timer(*gpu, kLinkTimer, link.sms));
  }

  const std::string getBackendName() const override { return "firkin_link"; }  // NOLINT(readability-const-return-type)
  c10::intrusive_ptr<Options> getBackendOptions() override { return cpu_->getBackendOptions(); }

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return carrier(tensors.at(0)).allreduce(tensors, options);
  }
  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return carrier(tensors.at(0)).broadcast(tensors, options);
  }
  Work allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions& options) override {
    return carrier(inputs.at(0)).allgather(outputs, inputs, options);
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return carrier(input)._allgather_base(output, input, options);
  }
  Work barrier(const c10d::BarrierOptions& options) override { return cpu_->barrier(options); }

 private:
  c10d::Backend& carrier(const at::Tensor& tensor) const { return tensor.is_cpu() ? *cpu_ : *gpu_; }

  c10::intrusive_ptr<c10d::Backend> cpu_;
  c10::intrusive_ptr<c10d::Backend> gpu_;  // null: the process group is for CPU tensors alone
};

}  // namespace firkin::python
