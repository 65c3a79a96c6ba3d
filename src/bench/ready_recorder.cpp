#include "ready_recorder.h"

#include <utility>

namespace firkin {
namespace {

std::unique_ptr<GradientBuckets> bucket_per_parameter(const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> tensors;
  BucketPlan plan;
  for (const NamedTensor& parameter : parameters) {
    plan.buckets.push_back({static_cast<int64_t>(tensors.size()), 1});
    tensors.push_back(parameter.tensor);
  }
  constexpr double kAnyScale = 0.5;  // not 1, which would save the multiplication
  return std::make_unique<GradientBuckets>(std::move(tensors), std::move(plan), kAnyScale);
}

}  // namespace

ReadyRecorder::ReadyRecorder(const std::vector<NamedTensor>& parameters, ReadyWhen when)
    : buckets_(when == ReadyWhen::kInBucket ? bucket_per_parameter(parameters) : nullptr),
      ready_(parameters.size()),
      hooks_(parameters, [this, device = parameters.empty() ? c10::Device(c10::kCPU) : parameters[0].tensor.device()](size_t parameter) {
        if (buckets_) {
          buckets_->place(static_cast<int64_t>(parameter));
          buckets_->pack(static_cast<int64_t>(parameter));  // each in a bucket of its own
        }
        ready_[parameter] = device_now(device);
      }) {}

}  // namespace firkin
