#include "firkin/ddp/gradient_hook.h"

#include <ATen/ops/empty_like.h>

namespace firkin {
namespace {

BucketReduction start_plain(const ProcessGroup& group, at::Tensor bucket) {
  return {start_all_reduce(group, std::move(bucket)), {}};
}

int64_t plain_bytes(const at::Tensor& bucket) {
  return static_cast<int64_t>(bucket.nbytes());
}

bool is_compressible(const at::Tensor& bucket) {
  return bucket.scalar_type() == at::kFloat || bucket.scalar_type() == at::kDouble;
}

GradientHook compression(std::string name, at::ScalarType dtype) {
  auto start = [dtype](const ProcessGroup& group, const at::Tensor& bucket) -> BucketReduction {
    if (!is_compressible(bucket)) return start_plain(group, bucket);
    at::Tensor compressed = bucket.to(dtype);
    Work work = start_all_reduce(group, compressed);
    return {work, [work, bucket, compressed] {
              wait(work, "all-reduce of a compressed bucket");
              bucket.copy_(compressed);
            }};
  };
  auto bytes = [dtype](const at::Tensor& bucket) {
    return is_compressible(bucket) ? bucket.numel() * static_cast<int64_t>(c10::elementSize(dtype)) : plain_bytes(bucket);
  };
  return {std::move(name), start, bytes};
}

}  // namespace

GradientHook plain_all_reduce() {
  return {"none", start_plain, plain_bytes};
}
GradientHook bf16_compression() {
  return compression("bf16", at::kBFloat16);
}
GradientHook fp16_compression() {
  return compression("fp16", at::kHalf);
}

}  // namespace firkin
