// The gradients' memory: one flat tensor per bucket, and every parameter's gradient as a view into it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

// Gradients exist once. place() moves a parameter's gradient into its bucket, and adopt() makes its place there the
// gradient again, with the parameter's strides if they are dense. In between the parameter has no gradient, so that
// nothing that accumulates can write into a bucket in flight. Buckets, and every tensor in them, begin at multiples of
// kGradientAlignment. Buckets that are divided among ranks hold their tensors without gaps, and end with zeros. Not
// thread-safe.
//
// Note [Gradients that the program holds]
// A program may hold a parameter's gradient other than through grad(): it has kept the tensor, or has laid its
// gradients into one large tensor, whose memory they share. It then reads and zeroes them there, so they have to keep
// their memory, and get a copy of the mean (adopt_into()). held_elsewhere() finds them by counting references.
//
// A program may also keep a gradient that is a view into a bucket, after it was the parameter's. leave_kept_gradients()
// leaves such a bucket's memory to the program, so that the next step does not overwrite it.
class GradientBuckets {
 public:
  // parameters: in the plan's order; those of one bucket have one dtype and one device.
  //
  // scale: what a gradient is multiplied by on its way into the bucket (1 / world size, for a mean by summation).
  //
  // wire_dtype: float32 and float64 gradients are placed into a second, smaller tensor of this dtype, which travels;
  // see unpack().
  //
  // shared_by: the number of ranks among which each bucket is divided; 0 if it is not.
  GradientBuckets(std::vector<at::Tensor> parameters, BucketPlan plan, double scale,
                  std::optional<at::ScalarType> wire_dtype = std::nullopt, int64_t shared_by = 0);

  // Between steps: gives a bucket new memory if the program keeps a gradient that is no longer a parameter's, holds
  // anything else in the bucket's memory, or has moved a gradient elsewhere (Module.to() in Python). A gradient that
  // the program holds and that is still a parameter's accumulates, as without buckets. Returns whether any bucket got
  // new memory. Takes 10 ns a parameter. See Note [Gradients that the program holds].
  bool leave_kept_gradients();

  const BucketPlan& plan() const { return plan_; }
  int64_t bucket_count() const { return static_cast<int64_t>(buckets_.size()); }
  int64_t bucket_of(int64_t tensor) const { return bucket_of_[static_cast<size_t>(tensor)]; }
  // What travels: the bucket itself, or its tensor of wire_dtype.
  const at::Tensor& wire(int64_t bucket) const { return buckets_[static_cast<size_t>(bucket)].wire; }
  const at::Tensor& parameter(int64_t tensor) const { return parameters_[static_cast<size_t>(tensor)]; }
  // The tensor's place in its bucket, and where it begins there, in elements.
  const at::Tensor& view(int64_t tensor) const { return views_[static_cast<size_t>(tensor)]; }
  int64_t offset(int64_t tensor) const { return view(tensor).storage_offset() - wire(bucket_of(tensor)).storage_offset(); }
  // Bytes of the gradients in the bucket, without gaps.
  int64_t gradient_bytes(int64_t bucket) const { return buckets_[static_cast<size_t>(bucket)].gradient_bytes; }

  // Moves the parameter's gradient, scaled, into its bucket. On a CPU this is one pass over the data, in place if the
  // gradient is in the bucket already. On a device the gradient waits for pack(). An undefined gradient counts as
  // zeros, and a sparse one is refused before (refuse_sparse_gradient()).
  void place(int64_t tensor);

  // Before the launch, on the stream that launches. On a device, copies and scales all gradients that were placed, with
  // a kernel or two for the whole bucket instead of one for each tensor. Does nothing on a CPU.
  void pack(int64_t bucket);

  // Converts the tensor that has travelled into the bucket. Without wire_dtype, only tells the allocator of a device
  // which stream uses the bucket from now on.
  void unpack(int64_t bucket);

  // Fills all buckets with zeros: what a rank without data adds to the sum.
  void fill_with_zeros();

  // Scales the bucket, and with it the gradients in it.
  void scale(int64_t bucket, double factor);

  // Makes the place in the bucket the parameter's gradient.
  void adopt(int64_t tensor);
  // Copies the values from there to `own`, and makes that the parameter's gradient.
  void adopt_into(const at::Tensor& own, int64_t tensor);

 private:
  struct Memory {
    at::Tensor flat;
    at::Tensor wire;  // `flat` itself, or a tensor of wire_dtype
    int64_t gradient_bytes = 0;
    std::vector<at::Tensor> to_pack = {};  // on a device: gradients, until pack(), and
    std::vector<at::Tensor> places = {};   // where they go in `flat`
    std::optional<c10::Stream> home = {};  // on a device: the stream on which it was allocated
    size_t own_uses = 0;                   // how many of the references to the storage of `flat` are of this object
  };
  void allocate(size_t index);
  bool is_kept(size_t bucket) const;
  void place_on_cpu(size_t tensor);
  void place_on_device(size_t tensor);

  BucketPlan plan_;
  std::vector<at::Tensor> parameters_;
  std::vector<Memory> buckets_;
  std::vector<at::Tensor> views_;       // per tensor, into flat
  std::vector<at::Tensor> wire_views_;  // per tensor, into wire
  std::vector<int64_t> bucket_of_;
  std::optional<at::ScalarType> wire_dtype_;
  int64_t shared_by_ = 0;
  double scale_ = 1;
  at::Tensor scale_tensor_;  // a wrapped number
};

// What refers to a parameter's gradient besides the parameter: nothing, another tensor over the same memory, or the
// program to the tensor itself. kNobody if autograd has made the gradient in this backward. See
// Note [Gradients that the program holds].
enum class HeldBy { kNobody, kMemory, kTensor };
HeldBy held_elsewhere(const at::Tensor& gradient);

// Throws InputError, with the parameter's name, if its gradient is sparse.
void refuse_sparse_gradient(const NamedTensor& parameter);

}  // namespace firkin
