// The device that looks for races finds them.
#include "checked_device.h"

#include "../torch.h"

#include <c10/core/StreamGuard.h>

namespace firkin::streams {
namespace {

TEST(Clocks, WorkOnAnotherStreamIsARaceUnlessAnEventOrdersIt) {
  register_checked_device();
  const c10::Device device = checked_device(0);
  at::Tensor values = at::ones({8}, at::TensorOptions(device));
  const c10::Stream first = current_stream_of(device);
  const c10::Stream second = new_stream(device);
  {
    const c10::StreamGuard guard(second);
    values.mul_(2);
    EXPECT_THAT(Clocks::all().take_races(), Not(IsEmpty()));
  }
  wait_for(first, second);
  values.mul_(2);
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
  EXPECT_TRUE(at::equal(values.to(at::kCPU), at::full({8}, 4.0F)));
}

TEST(Clocks, MemoryThatIsFreedWhileAnotherStreamUsesItIsARace) {
  register_checked_device();
  const c10::Device device = checked_device(0);
  const c10::Stream second = new_stream(device);
  at::Tensor values = at::ones({8}, at::TensorOptions(device));
  wait_for(second, current_stream_of(device));
  {
    const c10::StreamGuard guard(second);
    const at::Tensor sum = values.sum();
  }
  values.reset();
  EXPECT_THAT(Clocks::all().take_races(), SizeIs(1));
}

}  // namespace
}  // namespace firkin::streams
