// The clock of a CUDA device: kernels that read its global timer, and that wait for it.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

#include "device_time.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

#if CUDART_VERSION >= 12080  // since then CUDA's runtime loads kernels from text

// In CUDA C++ these kernels would be
//
//   __global__ void NAME_stamp(u64* at) { *at = globaltimer(); }
//   __global__ void NAME_wait(u64* first, u64 first_ns, u64* second, u64 second_ns, u64* end) {
//     const u64 until = *end = max(*first + first_ns, *second + second_ns);
//     while (globaltimer() < until) __nanosleep(100);
//   }
//
// They are written in PTX, which the driver compiles for its GPU, so that the build needs no CUDA compiler.
constexpr const char* kKernels = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry NAME_stamp(.param .u64 at)
{
  .reg .u64 %at, %now;
  ld.param.u64 %at, [at];
  mov.u64 %now, %globaltimer;
  st.volatile.u64 [%at], %now;
  ret;
}

.visible .entry NAME_wait(.param .u64 first, .param .u64 first_ns, .param .u64 second, .param .u64 second_ns, .param .u64 end)
{
  .reg .u64 %place, %seconds, %until, %other, %now;
  .reg .pred %over;
  ld.param.u64 %place, [first];
  ld.param.u64 %seconds, [first_ns];
  ld.volatile.u64 %until, [%place];
  add.u64 %until, %until, %seconds;
  ld.param.u64 %place, [second];
  ld.param.u64 %seconds, [second_ns];
  ld.volatile.u64 %other, [%place];
  add.u64 %other, %other, %seconds;
  max.u64 %until, %until, %other;
  ld.param.u64 %place, [end];
  st.volatile.u64 [%place], %until;
again:
  mov.u64 %now, %globaltimer;
  setp.ge.u64 %over, %now, %until;
  @%over bra done;
  nanosleep.u32 100;
  bra again;
done:
  ret;
}
)";

constexpr std::string_view kName = "NAME";

class CudaTimer final : public DeviceTimer {
 public:
  CudaTimer(c10::Device device, const std::string& name, int sms) : device_(device) {
    const c10::DeviceGuard guard(device_);
    std::string text = kKernels;
    for (size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at)) text.replace(at, kName.size(), name);
    moments_ = at::empty({kMoments}, at::TensorOptions(at::kLong).device(device_));
    cudaLibrary_t kernels{};  // never unloaded: the process may end after the driver
    C10_CUDA_CHECK(cudaLibraryLoadData(&kernels, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    C10_CUDA_CHECK(cudaLibraryGetKernel(&stamp_, kernels, (name + "_stamp").c_str()));
    C10_CUDA_CHECK(cudaLibraryGetKernel(&wait_, kernels, (name + "_wait").c_str()));
    // Large matrix products ask for the same division of a multiprocessor's memory. A kernel that asks for another one
    // waits until the multiprocessor is idle.
    for (const cudaKernel_t kernel : {stamp_, wait_}) {
      C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    }
    if (sms != 0) hold(sms);
  }

  Moment stamp() override {
    const Moment moment = next_++;
    int64_t* at = place(moment);
    launch(stamp_, {}, std::array<void*, 1>{&at});
    return moment;
  }

  Moment wait(After first, std::optional<After> second) override {
    const Moment moment = next_++;
    const After other = second.value_or(first);
    int64_t* first_at = place(first.moment);
    int64_t* second_at = place(other.moment);
    int64_t* end_at = place(moment);
    int64_t first_ns = nanoseconds(first.seconds);
    int64_t second_ns = nanoseconds(other.seconds);
    launch(wait_, extent_, std::array<void*, 5>{&first_at, &first_ns, &second_at, &second_ns, &end_at});
    return moment;
  }

 private:
  struct Extent {
    unsigned blocks = 1;      // of one thread; all of them wait until the same moment, which each writes
    size_t shared_bytes = 0;  // of each
  };

  // Makes a wait so many blocks, of which no two fit on one multiprocessor.
  void hold(int sms) {
    int most = 0, shared_bytes = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMultiProcessorCount, device_.index()));
    if (sms < 1 || sms > most) throw InputError(fmt::format("sms={} on {}: expected 1 to {} multiprocessors", sms, device_.str(), most));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_.index()));
    C10_CUDA_CHECK(cudaFuncSetAttribute(wait_, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    extent_ = {static_cast<unsigned>(sms), static_cast<size_t>(shared_bytes)};
  }

  int64_t* place(Moment moment) const { return moments_.mutable_data_ptr<int64_t>() + moment % kMoments; }
  static int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

  template <size_t kCount>
  void launch(cudaKernel_t kernel, Extent extent, std::array<void*, kCount> arguments) const {
    const c10::DeviceGuard guard(device_);
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
    c10::cuda::CUDACachingAllocator::recordStream(moments_.storage().data_ptr(), stream);
    C10_CUDA_CHECK(cudaLaunchKernel(kernel, dim3(extent.blocks), dim3(1), arguments.data(), extent.shared_bytes, stream));
  }

  c10::Device device_;
  at::Tensor moments_;  // nanoseconds of the global timer
  Moment next_ = 0;
  cudaKernel_t stamp_{}, wait_{};
  Extent extent_;  // of a wait
};

#endif

}  // namespace

std::unique_ptr<DeviceTimer> make_device_timer(c10::Device device, [[maybe_unused]] const std::string& name, [[maybe_unused]] int sms) {
#if CUDART_VERSION >= 12080
  if (device.is_cuda()) return std::make_unique<CudaTimer>(device, name, sms);
  throw InputError(fmt::format("a modelled link or a replay on {}; expected the CPU, or a GPU", device.str()));
#else
  throw InputError(fmt::format("a modelled link or a replay on {}: Firkin was built with CUDA {}.{}; expected 12.8 or newer, or the CPU",
                               device.str(), CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
#endif
}

}  // namespace firkin
