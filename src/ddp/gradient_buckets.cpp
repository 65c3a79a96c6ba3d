#include "firkin/ddp/gradient_buckets.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "current_stream.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int64_t kAlignment = 256;  // bytes: whole cache lines, and the widest loads of any device

int64_t align_up(int64_t elements, int64_t element_bytes) {
  const int64_t step = kAlignment / element_bytes;
  return (elements + step - 1) / step * step;
}

// Zeros that begin at a multiple of kAlignment.
at::Tensor aligned_zeros(int64_t elements, const at::TensorOptions& options) {
  const auto element_bytes = static_cast<int64_t>(options.dtype().itemsize());
  at::Tensor memory = at::zeros({elements + kAlignment / element_bytes}, options);
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.data_ptr()) % kAlignment);
  return memory.narrow(0, beyond == 0 ? 0 : (kAlignment - beyond) / element_bytes, elements);
}

// A view of `parameter`'s shape at `offset` elements into `flat`. The strides are the parameter's own where it fills its memory without
// gaps (channels-last convolutions, transposed weights), so that optimisers read both in memory order.
at::Tensor view_like(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  at::Tensor view = parameter.is_non_overlapping_and_dense()
                        ? flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + offset)
                        : flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
  // Not a view in autograd's books: torch::optim::Optimizer::zero_grad() calls detach_(), which views refuse.
  return view.variable_data();
}

// Gradients live as long as somebody holds them: their memory must not go back to the allocator before this stream is done with it.
void keep_for_current_stream(const at::Tensor& flat, const at::Tensor& wire, const c10::Stream& home) {
  const c10::Stream current = current_stream(flat.device());
  if (current == home) return;
  const c10::impl::VirtualGuardImpl guard(flat.device().type());
  guard.recordDataPtrOnStream(flat.storage().data_ptr(), current);
  if (!wire.is_same(flat)) guard.recordDataPtrOnStream(wire.storage().data_ptr(), current);
}

bool is_compressible(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble;
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<at::Tensor> parameters, BucketPlan plan, double scale,
                                 std::optional<at::ScalarType> wire_dtype)
    : plan_(std::move(plan)), parameters_(std::move(parameters)), scale_(at::native::wrapped_scalar_tensor(scale)), scales_(scale != 1) {
  at::NoGradGuard no_grad;
  check_plan(plan_, static_cast<int64_t>(parameters_.size()));
  views_.reserve(parameters_.size());
  wire_views_.reserve(parameters_.size());
  Memory whole;
  for (const Bucket& bucket : plan_.buckets) {
    if (bucket.part == 0) whole = make_memory(bucket, wire_dtype);
    if (bucket.parts == 1) {
      buckets_.push_back(std::move(whole));
      continue;
    }
    const at::Tensor& split = parameters_[static_cast<size_t>(bucket.first)];
    const int64_t begin = part_begin(split.numel(), bucket.part, bucket.parts);
    const int64_t elements = part_begin(split.numel(), bucket.part + 1, bucket.parts) - begin;
    const at::Tensor flat = whole.flat.narrow(0, begin, elements);
    buckets_.push_back({.flat = flat,
                        .wire = whole.wire.is_same(whole.flat) ? flat : whole.wire.narrow(0, begin, elements),
                        .gradient_bytes = elements * static_cast<int64_t>(split.element_size()),
                        .home = whole.home});
  }
}

// Of all tensors of the bucket; with the first part of a split one, of the whole tensor.
GradientBuckets::Memory GradientBuckets::make_memory(const Bucket& bucket, std::optional<at::ScalarType> wire_dtype) {
  const auto first = parameters_.begin() + bucket.first;
  const auto element_bytes = static_cast<int64_t>(first->element_size());
  std::vector<int64_t> offsets;
  int64_t elements = 0;
  Memory memory;
  for (auto p = first; p != first + bucket.count; ++p) {
    offsets.push_back(align_up(elements, element_bytes));
    elements = offsets.back() + p->numel();
    memory.gradient_bytes += static_cast<int64_t>(p->nbytes());
    bucket_of_.push_back(bucket_count());
  }
  const at::TensorOptions options = first->options().requires_grad(false).memory_format(std::nullopt);
  if (!options.device().is_cpu()) memory.home = current_stream(options.device());
  memory.flat = aligned_zeros(elements, options);
  const bool compresses = wire_dtype && is_compressible(first->scalar_type());
  memory.wire = compresses ? aligned_zeros(elements, options.dtype(*wire_dtype)) : memory.flat;
  for (int64_t i = 0; i < bucket.count; ++i) {
    views_.push_back(view_like(first[i], memory.flat, offsets[static_cast<size_t>(i)]));
    wire_views_.push_back(compresses ? view_like(first[i], memory.wire, offsets[static_cast<size_t>(i)]) : views_.back());
  }
  return memory;
}

void GradientBuckets::place(int64_t tensor) {
  at::NoGradGuard no_grad;
  const auto index = static_cast<size_t>(tensor);
  at::Tensor& gradient = parameters_[index].mutable_grad();
  at::Tensor& target = wire_views_[index];
  if (!gradient.defined()) {
    target.zero_();
    return;
  }
  if (gradient.layout() != at::kStrided) throw InputError("a gradient is sparse; Firkin synchronises dense gradients only");
  if (gradient.is_alias_of(target) && gradient.data_ptr() == target.data_ptr() && gradient.strides() == target.strides()) {
    if (scales_) scale_in_place(index);
  } else if (scales_ && (gradient.scalar_type() == target.scalar_type() || !target.is_cpu())) {
    at::mul_out(target, gradient, scale_);  // on a device in one kernel, which also rounds to the target's dtype
  } else {
    target.copy_(gradient);
    if (scales_) target.mul_(scale_);
  }
  gradient.reset();
}

// One kernel for all such tensors of a bucket, not one for each. A split tensor lies in several buckets and is scaled at once.
void GradientBuckets::scale_in_place(size_t tensor) {
  const auto bucket = static_cast<size_t>(bucket_of_[tensor]);
  if (wire_views_[tensor].is_cpu() || plan_.buckets[bucket].parts > 1) {
    wire_views_[tensor].mul_(scale_);
  } else {
    buckets_[bucket].unscaled.push_back(wire_views_[tensor]);
  }
}

void GradientBuckets::scale_where_placed(int64_t bucket) {
  std::vector<at::Tensor>& unscaled = buckets_[static_cast<size_t>(bucket)].unscaled;
  if (unscaled.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(unscaled, scale_.item());
  unscaled.clear();
}

void GradientBuckets::unpack(int64_t bucket) {
  const Memory& memory = buckets_[static_cast<size_t>(bucket)];
  if (memory.home) keep_for_current_stream(memory.flat, memory.wire, *memory.home);
  if (!memory.wire.is_same(memory.flat)) memory.flat.copy_(memory.wire);
}

void GradientBuckets::fill_with_zeros() {
  for (const Memory& memory : buckets_) memory.wire.zero_();
}

void GradientBuckets::scale(int64_t bucket, double factor) {
  buckets_[static_cast<size_t>(bucket)].flat.mul_(factor);
}

void GradientBuckets::adopt(int64_t tensor) {
  parameters_[static_cast<size_t>(tensor)].mutable_grad() = views_[static_cast<size_t>(tensor)];
}

}  // namespace firkin
