#include "ddp/buckets.h"

#include "../torch.h"

namespace firkin {
namespace {

std::vector<at::Tensor> parameters_of(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> parameters;
  for (const int64_t size : sizes) parameters.push_back(at::zeros({size}, dtype));
  return parameters;
}

uintptr_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data_ptr());
}

TEST(GradientBuckets, BucketsAndTheTensorsInThemBeginAtMultiplesOf256Bytes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const std::vector<at::Tensor> parameters = parameters_of({1, 3, 64, 100, 7}, dtype);
    GradientBuckets buckets(parameters, {.buckets = {{0, 2}, {2, 3}}}, 0.5, at::kBFloat16);
    for (int64_t i = 0; i < 5; ++i) {
      buckets.adopt(i);
      EXPECT_EQ(address_of(parameters[static_cast<size_t>(i)].grad()) % 256, 0) << i;
    }
    for (int64_t b = 0; b < 2; ++b) EXPECT_EQ(address_of(buckets.wire(b)) % 256, 0) << b;
  }
}

TEST(GradientBuckets, APlacedGradientIsTakenFromItsParameterUntilItIsAdopted) {
  const std::vector<at::Tensor> parameters = parameters_of({3});
  GradientBuckets buckets(parameters, {.buckets = {{0, 1}}}, 0.5);
  parameters[0].mutable_grad() = at::full({3}, 4.0F);
  buckets.place(0);
  EXPECT_FALSE(parameters[0].grad().defined());
  buckets.adopt(0);
  EXPECT_TRUE(at::equal(parameters[0].grad(), at::full({3}, 2.0F)));
}

TEST(GradientBuckets, ACompressedBucketKeepsItsBufferFromStepToStep) {
  const std::vector<at::Tensor> parameters = parameters_of({3, 5});
  GradientBuckets buckets(parameters, {.buckets = {{0, 2}}}, 0.5, at::kBFloat16);
  const uintptr_t wire = address_of(buckets.wire(0));
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < 2; ++i) {
      parameters[static_cast<size_t>(i)].mutable_grad() = at::full_like(parameters[static_cast<size_t>(i)], 6);
      buckets.place(i);
    }
    EXPECT_EQ(buckets.wire(0).scalar_type(), at::kBFloat16);
    EXPECT_EQ(address_of(buckets.wire(0)), wire);
    buckets.unpack(0);
    for (int64_t i = 0; i < 2; ++i) {
      buckets.adopt(i);
      EXPECT_TRUE(at::equal(parameters[static_cast<size_t>(i)].grad(), at::full_like(parameters[static_cast<size_t>(i)], 3)));
    }
  }
}

TEST(GradientBuckets, BytesAreThoseOfTheGradientsWithoutTheGapsBetweenThem) {
  GradientBuckets buckets(parameters_of({1, 3}), {.buckets = {{0, 2}}}, 1);
  EXPECT_EQ(buckets.gradient_bytes(0), 16);
  EXPECT_EQ(buckets.wire(0).nbytes(), 256 + 12);
}

}  // namespace
}  // namespace firkin
