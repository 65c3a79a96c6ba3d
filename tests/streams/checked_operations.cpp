// Every operator of LibTorch for the checked device: the CPU's, on the same memory.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include "checked_device.h"

#include <torch/library.h>

namespace firkin::streams {
namespace {

bool is_checked(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone();
}

c10::Device device_with_index(std::optional<c10::Device> device) {
  if (device && device->has_index()) return *device;
  return {c10::kPrivateUse1, current_stream_of(c10::Device(c10::kPrivateUse1)).device_index()};
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<c10::Device> device, std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_with_index(device));
  return at::detail::empty_generic(size, c10::GetAllocator(c10::kPrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<c10::Device> device, std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard guard(device_with_index(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::kPrivateUse1),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

// LibTorch's own makes an empty tensor and resizes it, which this device's memory is not made for.
at::Tensor arange(const at::Scalar& start, const at::Scalar& end, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                  std::optional<c10::Device> device, std::optional<bool> /*pinned*/) {
  const c10::Device where = device_with_index(device);
  begin_operation(where, "arange");
  const at::Tensor values = at::arange(start, end, at::TensorOptions(dtype.value_or(at::kLong)));
  at::Tensor result = empty(values.sizes(), values.scalar_type(), std::nullopt, where, std::nullopt, std::nullopt);
  touch(result, /*writes=*/true);
  alias_on_cpu(result).copy_(values);
  return result;
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.is_privateuseone() ? alias_on_cpu(tensor) : tensor;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool /*non_blocking*/) {
  begin_operation(source.is_privateuseone() ? source.device() : target.device(), "copy_");
  if (source.is_privateuseone()) touch(source, /*writes=*/false, /*lasts=*/!target.is_cpu());
  if (target.is_privateuseone()) touch(target, /*writes=*/true);
  if (target.is_cpu()) Clocks::all().host_waits("a copy to the CPU");
  on_cpu(target).copy_(on_cpu(source));
  return target;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  begin_operation(tensor.device(), "item");
  touch(tensor, /*writes=*/false, /*lasts=*/false);
  Clocks::all().host_waits("item()");
  return alias_on_cpu(tensor).item();
}

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& operation, torch::jit::Stack& stack) : operation_(operation), stack_(stack) {}

  void run() {
    const auto& arguments = operation_.schema().arguments();
    const size_t first = stack_.size() - arguments.size();
    given_ = {stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end()};
    find_device();
    begin_operation(*device_, operation_.schema().name());
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      const bool is_looked_through = alias != nullptr && !alias->isWrite();  // by an operator that makes a view
      stack_[first + i] = lowered(stack_[first + i], alias != nullptr && alias->isWrite(), is_looked_through);
    }
    {
      const at::AutoDispatchBelowADInplaceOrView guard;
      operation_.callBoxed(stack_);
    }
    const size_t results = operation_.schema().returns().size();
    for (size_t i = stack_.size() - results; i < stack_.size(); ++i) stack_[i] = raised(stack_[i]);
  }

 private:
  void find_device() {
    for (const c10::IValue& value : given_) {
      if (is_checked(value)) device_ = value.toTensor().device();
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
          if (tensor.defined() && tensor.is_privateuseone()) device_ = tensor.device();
        }
      }
      if (!device_ && value.isDevice()) device_ = device_with_index(value.toDevice());
    }
    if (!device_) device_ = device_with_index(std::nullopt);
  }

  at::Tensor lowered(const at::Tensor& tensor, bool writes, bool is_looked_through) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    if (!is_looked_through) touch(tensor, writes);
    originals_.push_back(tensor);
    aliases_.push_back(alias_on_cpu(tensor));
    return aliases_.back();
  }

  c10::IValue lowered(const c10::IValue& value, bool writes, bool is_looked_through) {
    if (is_checked(value)) return lowered(value.toTensor(), writes, is_looked_through);
    if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::kCPU);
    if (!value.isTensorList()) return value;
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(lowered(tensor, writes, is_looked_through));
    return list;
  }

  c10::IValue raised(const c10::IValue& value) {
    if (value.isTensor()) return raised(value.toTensor());
    if (!value.isTensorList()) return value;
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(raised(tensor));
    return list;
  }

  at::Tensor raised(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (size_t i = 0; i < aliases_.size(); ++i) {
      if (tensor.is_same(aliases_[i])) return originals_[i];
    }
    for (size_t i = 0; i < aliases_.size(); ++i) {
      if (tensor.has_storage() && tensor.storage().data() == aliases_[i].storage().data()) return view_of(originals_[i], tensor);
    }
    at::Tensor result = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(*device_));
    touch(result, /*writes=*/true);
    alias_on_cpu(result).copy_(tensor);
    return result;
  }

  static at::Tensor view_of(const at::Tensor& original, const at::Tensor& like) {
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(original.storage()),
                                                               c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return view;
  }

  const c10::OperatorHandle& operation_;
  torch::jit::Stack& stack_;
  std::vector<c10::IValue> given_;
  std::optional<c10::Device> device_;
  std::vector<at::Tensor> originals_;
  std::vector<at::Tensor> aliases_;
};

void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  Call(operation, *stack).run();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("arange.start", &arange);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &local_scalar);
}

}  // namespace firkin::streams
