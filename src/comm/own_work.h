// A collective that is completed by us, and not by a backend of c10d.
#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace firkin {

// Its base class keeps the trace: a collective from its launch until complete().
class OwnWork final : public c10d::Work {
 public:
  OwnWork(int rank, c10d::OpType type, const char* name, const std::vector<at::Tensor>& tensors)
      : c10d::Work(rank, type, name, tensors),
        tensors_(tensors),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return tensors_; }

  // Once. In Gloo's order: who has waited for the work finds the future complete. A callback of the future that throws does so on a thread
  // where nobody would catch it, so that becomes the work's error.
  void complete(std::exception_ptr error) noexcept {
    try {
      if (error) {
        future_->setError(error);
      } else {
        future_->markCompleted(c10::IValue(tensors_));
      }
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    finish(error);
  }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace firkin
