#include "bench/step_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>

#include "bench/step_runner.h"
#include "comm/across_ranks.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Tensors outlive the object that counts them, and are freed on any thread: hence global, behind one mutex.
std::mutex mutex;
int64_t live_bytes = 0;
int64_t most_bytes = 0;
// LibTorch wants blocks whose context is their address, so their size cannot travel with them.
std::unordered_map<void*, int64_t> sizes;

void free_block(void* data) {
  {
    const std::lock_guard lock(mutex);
    const auto found = sizes.find(data);
    if (found != sizes.end()) {
      live_bytes -= found->second;
      sizes.erase(found);
    }
  }
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    if (data != nullptr) {
      const std::lock_guard lock(mutex);
      sizes[data] = static_cast<int64_t>(bytes);
      live_bytes += static_cast<int64_t>(bytes);
      most_bytes = std::max(most_bytes, live_bytes);
    }
    return {data, data, free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    c10::GetDefaultCPUAllocator()->copy_data(to, from, bytes);
  }
};

CountingAllocator counting_allocator;

// What a GPU's allocator has counted since the process began: bytes, current and peak.
auto counted(c10::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

// Bytes that live as long as the workload.
int64_t lasting_bytes(const Workload& workload) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : workload.parameters) bytes += static_cast<int64_t>(tensor.nbytes());
  for (const at::Tensor& tensor : workload.module->buffers()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr || dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // This is LibTorch's CPU allocator.
  return std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

// The largest need and the lowest limit, in words, if some rank needs more than it may; else empty.
std::string excess_of_any_rank(const ProcessGroup& group, const char* what, int64_t needed_bytes, int64_t limit_bytes) {
  const auto needed = static_cast<double>(needed_bytes), limit = static_cast<double>(limit_bytes);
  const std::vector<double> most = max_over_ranks(group, {needed, -limit, needed - limit});
  if (most[2] <= 0) return "";
  return fmt::format("{} {} a rank; limit {}", what, format_bytes(static_cast<int64_t>(most[0])),
                     format_bytes(static_cast<int64_t>(-most[1])));
}

}  // namespace

TensorMemory::TensorMemory(c10::Device device) : device_(device) {
  if (!device.is_cpu()) {
    before_bytes_ = counted(device).current;
    reset_peak();
    return;
  }
  const std::lock_guard lock(mutex);
  sizes.clear();  // memory that an earlier object counted is ignored when it is freed
  live_bytes = 0;
  most_bytes = 0;
  c10::SetCPUAllocator(&counting_allocator);
}

TensorMemory::~TensorMemory() {
  if (device_.is_cpu()) c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
}

int64_t TensorMemory::now_bytes() const {
  if (!device_.is_cpu()) return counted(device_).current - before_bytes_;
  const std::lock_guard lock(mutex);
  return live_bytes;
}

int64_t TensorMemory::peak_bytes() const {
  if (!device_.is_cpu()) return counted(device_).peak - before_bytes_;
  const std::lock_guard lock(mutex);
  return most_bytes;
}

void TensorMemory::reset_peak() {
  if (!device_.is_cpu()) return c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  const std::lock_guard lock(mutex);
  most_bytes = live_bytes;
}

StepMemory measure_step_memory(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options) {
  forget_gradients(workload);
  TensorMemory memory(device_of(workload));
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  while (step < 1 + steps_to_learn(options)) runner.step(step++);
  forget_gradients(workload);
  memory.reset_peak();
  runner.step(step);
  runner.drain();
  const auto lasting = static_cast<double>(lasting_bytes(workload));
  const std::vector<double> most =
      max_over_ranks(group, {lasting + static_cast<double>(memory.peak_bytes()), lasting + static_cast<double>(memory.now_bytes())});
  forget_gradients(workload);
  return {.peak_bytes = static_cast<int64_t>(most[0]), .between_steps_bytes = static_cast<int64_t>(most[1])};
}

StepMemory measure_local_step_memory(Workload& workload) {
  forget_gradients(workload);
  TensorMemory memory(device_of(workload));
  workload.loss(0).backward();
  const int64_t lasting = lasting_bytes(workload);
  const StepMemory result{.peak_bytes = lasting + memory.peak_bytes(), .between_steps_bytes = lasting + memory.now_bytes()};
  forget_gradients(workload);
  return result;
}

std::optional<Workload> make_within_memory(const ProcessGroup& group, const std::function<Workload()>& make, int64_t estimated_bytes,
                                           int64_t limit_bytes, std::string& why_not) {
  why_not = excess_of_any_rank(group, "estimated", estimated_bytes, limit_bytes);
  if (!why_not.empty()) return std::nullopt;
  std::optional<Workload> workload;
  int64_t peak_bytes = 0;
  try {
    workload = make();
    peak_bytes = measure_local_step_memory(*workload).peak_bytes;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    workload.reset();
  }
  const bool one_failed = max_over_ranks(group, {workload ? 0.0 : 1.0})[0] > 0;
  why_not = one_failed ? "an allocation failed" : excess_of_any_rank(group, "a trial step took", peak_bytes, limit_bytes);
  if (!why_not.empty()) workload.reset();
  return workload;
}

}  // namespace firkin
