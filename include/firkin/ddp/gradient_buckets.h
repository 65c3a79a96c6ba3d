// The gradients' memory: one flat tensor per bucket, and every parameter's gradient as a view into it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "firkin/plan/bucket_plan.h"

namespace firkin {

// Gradients exist once: after place() a parameter's gradient is a view into its bucket, with the parameter's strides where they
// are dense. Not thread-safe.
class GradientBuckets {
 public:
  // parameters: in the order that the plan speaks of; those of one bucket must agree in dtype and device.
  // scale: what a gradient is multiplied with on its way into the bucket (1 / world size, for a mean by summation).
  GradientBuckets(std::vector<at::Tensor> parameters, BucketPlan plan, double scale);

  const BucketPlan& plan() const { return plan_; }
  int64_t bucket_count() const { return static_cast<int64_t>(flat_.size()); }
  int64_t bucket_of(int64_t tensor) const { return bucket_of_[static_cast<size_t>(tensor)]; }
  const at::Tensor& flat(int64_t bucket) const { return flat_[static_cast<size_t>(bucket)]; }

  // Writes the parameter's gradient, scaled, into its view, and makes the view the gradient. One pass over the data: autograd hands over
  // its own tensor when the gradient was undefined before backward, and a gradient that is the view already is scaled in place.
  // An undefined gradient stays undefined, and counts as zeros in the bucket. Throws InputError for a sparse gradient.
  void place(int64_t tensor);

  // All buckets: what a rank without data adds to the sum.
  void fill_with_zeros();

  // All buckets, and with them the gradients that live there.
  void scale(double factor);

  // Makes the view the parameter's gradient, whatever that was.
  void adopt(int64_t tensor);

 private:
  BucketPlan plan_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> flat_;   // per bucket
  std::vector<at::Tensor> views_;  // per tensor
  std::vector<int64_t> bucket_of_;
  at::Tensor scale_;
  bool scales_ = false;
};

}  // namespace firkin
