// The gradients' memory: one flat tensor per bucket, and every parameter's gradient as a view into it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "firkin/plan/bucket_plan.h"

namespace firkin {

// Gradients exist once: place() moves a parameter's gradient into its bucket, adopt() makes its place there the
// gradient again, with the parameter's strides if they are dense. Between the two the parameter has no gradient, so
// that nothing that accumulates can write into a bucket in flight. Buckets, and every tensor in them, begin at
// multiples of kGradientAlignment. Buckets that ranks share hold their tensors without gaps, and end with zeros. Not thread-safe.
class GradientBuckets {
 public:
  // parameters: in the plan's order; those of one bucket must agree in dtype and device.
  //
  // scale: what a gradient is multiplied by on its way into the bucket (1 / world size, for a mean by summation).
  //
  // wire_dtype: float32 and float64 gradients are placed into a second, smaller tensor of this dtype, which travels;
  // see unpack().
  //
  // shared_by: ranks among which each bucket is divided; 0 if it is not.
  GradientBuckets(std::vector<at::Tensor> parameters, BucketPlan plan, double scale,
                  std::optional<at::ScalarType> wire_dtype = std::nullopt, int64_t shared_by = 0);

  // Between steps: gives a bucket new memory if the program keeps a gradient that it took out of grad(), holds anything
  // else in the bucket's memory, or has moved a gradient elsewhere (Module.to() in Python). Whoever holds a gradient
  // that is still a parameter's sees it accumulate, as without buckets. Returns whether any bucket got new memory.
  // 10 ns a parameter.
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
  // Bytes of the gradients in it, without the gaps of alignment.
  int64_t gradient_bytes(int64_t bucket) const { return buckets_[static_cast<size_t>(bucket)].gradient_bytes; }

  // Moves the parameter's gradient, scaled, into its bucket. On a CPU this is one pass over the data, in place if the
  // gradient lies in the bucket already; on a device the gradient is kept until pack(). An undefined gradient counts as
  // zeros. Throws InputError for a sparse gradient.
  void place(int64_t tensor);

  // Before the bucket is sent, on the stream that sends it: on a device, copies what place() has kept and scales it,
  // with a kernel or two for the whole bucket instead of one for each tensor. On a CPU there is nothing left to do.
  void pack(int64_t bucket);

  // Writes what travelled into the bucket itself. Without wire_dtype it only tells the allocator of a device on which
  // stream the bucket is used from now on.
  void unpack(int64_t bucket);

  // Fills all buckets with zeros: what a rank without data adds to the sum.
  void fill_with_zeros();

  // Scales the bucket, and with it the gradients that live there.
  void scale(int64_t bucket, double factor);

  // Makes its place in the bucket the parameter's gradient, whatever that was.
  void adopt(int64_t tensor);
  // The same for a gradient of the program's own, which is given the values.
  void adopt_into(const at::Tensor& own, int64_t tensor);

 private:
  struct Memory {
    at::Tensor flat;
    at::Tensor wire;  // flat itself, or of wire_dtype
    int64_t gradient_bytes = 0;
    std::vector<at::Tensor> to_pack = {};  // on a device: gradients, until pack(), and
    std::vector<at::Tensor> places = {};   // where they go in `flat`
    std::optional<c10::Stream> home = {};  // on a device: the stream that it was allocated on, and goes back to
    size_t own_uses = 0;                   // our own, of the storage of `flat`
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

// What else refers to a parameter's gradient: nothing, another tensor over its memory (the program keeps gradients in
// one tensor), or a handle of the tensor itself. kNobody for one that autograd made in this backward.
enum class HeldBy { kNobody, kMemory, kTensor };
HeldBy held_elsewhere(const at::Tensor& gradient);

}  // namespace firkin
