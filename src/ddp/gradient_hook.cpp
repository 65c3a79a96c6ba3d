#include "firkin/ddp/gradient_hook.h"

namespace firkin {
namespace {

BucketReduction start_plain(const ProcessGroup& group, at::Tensor bucket) {
  return {start_all_reduce(group, std::move(bucket)), {}};
}

}  // namespace

GradientHook plain_all_reduce() {
  return {.name = "none", .start = start_plain};
}
GradientHook bf16_compression() {
  return {.name = "bf16", .start = start_plain, .wire_dtype = at::kBFloat16};
}
GradientHook fp16_compression() {
  return {.name = "fp16", .start = start_plain, .wire_dtype = at::kHalf};
}

}  // namespace firkin
