#include "buckets.h"

#include <ATen/ScalarOps.h>
#include <ATen/ceil_div.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "firkin/base/error.h"
#include "flight.h"

namespace firkin {
namespace {

// Zeros that begin at a multiple of kGradientAlignment.
at::Tensor aligned_zeros(int64_t elements, const at::TensorOptions& options) {
  const auto element_bytes = static_cast<int64_t>(options.dtype().itemsize());
  at::Tensor memory = at::zeros({elements + kGradientAlignment / element_bytes}, options);
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.data_ptr()) % kGradientAlignment);
  return memory.narrow(0, beyond == 0 ? 0 : (kGradientAlignment - beyond) / element_bytes, elements);
}

// A view of `parameter`'s shape at `offset` elements into `flat`, with the parameter's strides if it is dense (also
// channels-last or transposed), so that optimisers read both in memory order.
at::Tensor view_like(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  at::Tensor view = parameter.is_non_overlapping_and_dense()
                        ? flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + offset)
                        : flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
  // Autograd must not know this as a view: LibTorch 2.13's Optimizer::zero_grad() calls detach_(), which views refuse.
  return view.variable_data();
}

// Whether there are references to a tensor or a storage besides `ours`. Its Python object, if it has one, is one
// reference. It counts only if something refers to that object in turn.
template <typename Object>
bool is_held(const Object* object, size_t uses, size_t ours) {
  if (object == nullptr || uses <= ours) return false;
  const auto* const python = object->pyobj_slot();
  if (python->load_pyobj() == nullptr) return true;
  return uses > ours + 1 || !python->has_unique_reference();
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<at::Tensor> parameters, BucketPlan plan, double scale,
                                 std::optional<at::ScalarType> wire_dtype, int64_t shared_by)
    : plan_(std::move(plan)),
      parameters_(std::move(parameters)),
      buckets_(plan_.buckets.size()),
      views_(parameters_.size()),
      wire_views_(parameters_.size()),
      bucket_of_(parameters_.size()),
      wire_dtype_(wire_dtype),
      shared_by_(shared_by),
      scale_(scale),
      scale_tensor_(at::native::wrapped_scalar_tensor(scale)) {
  check_plan(plan_, static_cast<int64_t>(parameters_.size()));
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const Bucket& tensors = plan_.buckets[bucket];
    std::fill_n(bucket_of_.begin() + tensors.first, tensors.count, static_cast<int64_t>(bucket));
    allocate(bucket);
  }
}

void GradientBuckets::allocate(size_t index) {
  const at::NoGradGuard no_grad;
  const Bucket& bucket = plan_.buckets[index];
  const auto first = parameters_.begin() + bucket.first;
  const int64_t alignment = kGradientAlignment / first->element_size();
  std::vector<int64_t> offsets;
  int64_t elements = 0;
  Memory memory;
  for (auto p = first; p != first + bucket.count; ++p) {
    offsets.push_back(shared_by_ > 0 ? elements : at::round_up(elements, alignment));
    elements = offsets.back() + p->numel();
    memory.gradient_bytes += static_cast<int64_t>(p->nbytes());
  }
  if (shared_by_ > 0) elements = at::round_up(elements, shared_by_);
  const at::TensorOptions options = first->options().requires_grad(false).memory_format(std::nullopt);
  if (!options.device().is_cpu()) memory.home = current_stream(options.device());
  memory.flat = aligned_zeros(elements, options);
  const bool compresses = wire_dtype_ && (first->scalar_type() == at::kFloat || first->scalar_type() == at::kDouble);
  memory.wire = compresses ? aligned_zeros(elements, options.dtype(wire_dtype_)) : memory.flat;
  for (int64_t i = 0; i < bucket.count; ++i) {
    const auto tensor = static_cast<size_t>(bucket.first + i);
    views_[tensor] = view_like(first[i], memory.flat, offsets[static_cast<size_t>(i)]);
    wire_views_[tensor] = compresses ? view_like(first[i], memory.wire, offsets[static_cast<size_t>(i)]) : views_[tensor];
  }
  memory.own_uses = memory.flat.storage().use_count();
  buckets_[index] = std::move(memory);
}

bool GradientBuckets::is_kept(size_t bucket) const {
  const Bucket& tensors = plan_.buckets[bucket];
  const Memory& memory = buckets_[bucket];
  const c10::Storage& storage = memory.flat.storage();
  bool any_left = false;
  for (auto tensor = static_cast<size_t>(tensors.first); tensor < static_cast<size_t>(tensors.first + tensors.count); ++tensor) {
    const at::Tensor& view = views_[tensor];
    // Module.to() in Python sets the data of the gradient, which is this view.
    if (view.storage().unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) return true;
    if (parameters_[tensor].grad().is_same(view)) continue;
    if (is_held(view.unsafeGetTensorImpl(), view.use_count(), wire_views_[tensor].is_same(view) ? size_t{2} : size_t{1})) return true;
    any_left = true;
  }
  return any_left && is_held(storage.unsafeGetStorageImpl(), storage.use_count(), memory.own_uses);
}

bool GradientBuckets::leave_kept_gradients() {
  bool any = false;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!is_kept(bucket)) continue;
    allocate(bucket);
    any = true;
  }
  return any;
}

void refuse_sparse_gradient(const NamedTensor& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined() || gradient.layout() == at::kStrided) return;
  throw InputError(fmt::format("DataParallel: {} has a sparse gradient, and only dense ones travel; expected a module without `sparse`",
                               parameter.name));
}

void GradientBuckets::place(int64_t tensor) {
  const at::NoGradGuard no_grad;
  const auto index = static_cast<size_t>(tensor);
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!gradient.defined()) {
    wire_views_[index].zero_();
    if (!wire_views_[index].is_cpu()) views_[index].zero_();
    return;
  }
  wire_views_[index].is_cpu() ? place_on_cpu(index) : place_on_device(index);
  gradient.reset();
}

// Scales before it converts to wire_dtype: the mean may fit into the smaller dtype where the gradient does not.
void GradientBuckets::place_on_cpu(size_t tensor) {
  const at::Tensor& gradient = parameters_[tensor].grad();
  at::Tensor& view = views_[tensor];
  at::Tensor& target = wire_views_[tensor];
  if (scale_ != 1) {
    at::mul_out(view, gradient, scale_tensor_);
  } else if (gradient.data_ptr() != view.data_ptr() || gradient.strides() != view.strides()) {
    view.copy_(gradient);
  }
  if (!target.is_same(view)) target.copy_(view);
}

void GradientBuckets::place_on_device(size_t tensor) {
  const at::Tensor& gradient = parameters_[tensor].grad();
  if (gradient.is_same(views_[tensor])) return;
  Memory& memory = buckets_[static_cast<size_t>(bucket_of_[tensor])];
  memory.to_pack.push_back(gradient);
  memory.places.push_back(views_[tensor]);
}

void GradientBuckets::pack(int64_t bucket) {
  Memory& memory = buckets_[static_cast<size_t>(bucket)];
  if (memory.flat.is_cpu()) return;
  const at::NoGradGuard no_grad;
  if (!memory.to_pack.empty()) {
    at::_foreach_copy_(memory.places, memory.to_pack);
    for (const at::Tensor& gradient : memory.to_pack) keep_for_current_stream(gradient);
    memory.to_pack.clear();
    memory.places.clear();
  }
  if (scale_ != 1) memory.flat.mul_(scale_tensor_);
  if (!memory.wire.is_same(memory.flat)) memory.wire.copy_(memory.flat);
}

void GradientBuckets::unpack(int64_t bucket) {
  const Memory& memory = buckets_[static_cast<size_t>(bucket)];
  const bool is_compressed = !memory.wire.is_same(memory.flat);
  if (memory.home && *memory.home != current_stream(memory.flat.device())) {
    keep_for_current_stream(memory.flat);
    if (is_compressed) keep_for_current_stream(memory.wire);
  }
  if (is_compressed) memory.flat.copy_(memory.wire);
}

void GradientBuckets::fill_with_zeros() {
  for (Memory& memory : buckets_) {
    memory.to_pack.clear();
    memory.places.clear();
    memory.flat.zero_();
    if (!memory.wire.is_same(memory.flat)) memory.wire.zero_();
  }
}

void GradientBuckets::scale(int64_t bucket, double factor) {
  buckets_[static_cast<size_t>(bucket)].flat.mul_(factor);
}

void GradientBuckets::adopt(int64_t tensor) {
  parameters_[static_cast<size_t>(tensor)].mutable_grad() = views_[static_cast<size_t>(tensor)];
}

void GradientBuckets::adopt_into(const at::Tensor& own, int64_t tensor) {
  const at::NoGradGuard no_grad;
  own.copy_(views_[static_cast<size_t>(tensor)]);
  parameters_[static_cast<size_t>(tensor)].mutable_grad() = own;
}

// A gradient of version 0 was never written to in place: autograd has just made it, and may itself still hold its
// memory.
HeldBy held_elsewhere(const at::Tensor& gradient) {
  if (gradient.is_inference() || gradient._version() == 0) return HeldBy::kNobody;
  if (is_held(gradient.unsafeGetTensorImpl(), gradient.use_count(), 1)) return HeldBy::kTensor;
  const c10::Storage& storage = gradient.storage();
  return is_held(storage.unsafeGetStorageImpl(), storage.use_count(), 2) ? HeldBy::kMemory : HeldBy::kNobody;
}

}  // namespace firkin
