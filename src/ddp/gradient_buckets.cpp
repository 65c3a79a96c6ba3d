#include "firkin/ddp/gradient_buckets.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// A view of `parameter`'s shape at `offset` elements into `flat`. The strides are the parameter's own where it fills its memory without
// gaps (channels-last convolutions, transposed weights), so that optimisers read both in memory order.
at::Tensor view_like(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + offset);
  }
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<at::Tensor> parameters, BucketPlan plan, double scale)
    : plan_(std::move(plan)), parameters_(std::move(parameters)), scale_(at::native::wrapped_scalar_tensor(scale)), scales_(scale != 1) {
  at::NoGradGuard no_grad;
  check_plan(plan_, static_cast<int64_t>(parameters_.size()));
  views_.reserve(parameters_.size());
  for (const Bucket& bucket : plan_.buckets) {
    const auto first = parameters_.begin() + bucket.first;
    int64_t elements = 0;
    for (auto p = first; p != first + bucket.count; ++p) elements += p->numel();
    at::Tensor flat = at::zeros({elements}, first->options().requires_grad(false).memory_format(std::nullopt));
    int64_t offset = 0;
    for (auto p = first; p != first + bucket.count; ++p) {
      // Not a view in autograd's books: torch::optim::Optimizer::zero_grad() calls detach_(), which views refuse.
      views_.push_back(view_like(*p, flat, offset).variable_data());
      bucket_of_.push_back(static_cast<int64_t>(flat_.size()));
      offset += p->numel();
    }
    flat_.push_back(std::move(flat));
  }
}

void GradientBuckets::place(int64_t tensor) {
  at::NoGradGuard no_grad;
  const auto index = static_cast<size_t>(tensor);
  at::Tensor& gradient = parameters_[index].mutable_grad();
  at::Tensor& view = views_[index];
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (gradient.layout() != at::kStrided) throw InputError("a gradient is sparse; Firkin synchronises dense gradients only");
  if (gradient.is_alias_of(view) && gradient.data_ptr() == view.data_ptr() && gradient.strides() == view.strides()) {
    if (scales_) gradient.mul_(scale_);
    return;
  }
  if (scales_ && gradient.scalar_type() == view.scalar_type()) {
    at::mul_out(view, gradient, scale_);
  } else {
    view.copy_(gradient);
    if (scales_) view.mul_(scale_);
  }
  gradient = view;
}

void GradientBuckets::fill_with_zeros() {
  for (at::Tensor& flat : flat_) flat.zero_();
}

void GradientBuckets::scale(double factor) {
  for (at::Tensor& flat : flat_) flat.mul_(factor);
}

void GradientBuckets::adopt(int64_t tensor) {
  parameters_[static_cast<size_t>(tensor)].mutable_grad() = views_[static_cast<size_t>(tensor)];
}

}  // namespace firkin
