#include "checked_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstring>

namespace firkin::streams {
namespace {

thread_local c10::DeviceIndex current_index = 0;
thread_local std::array<c10::StreamId, kCheckedDevices> current_ids{};
std::atomic<c10::StreamId> last_id = 0;
std::atomic<int64_t> timing_event_count = 0;

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_index;
}

// Memory, with what the caching allocator of a GPU knows of it.
struct Block {
  void* memory = nullptr;
  int64_t bytes = 0;
  StreamKey stream = 0;
  std::atomic<bool> was_recorded = false;
};

struct Event {
  Clock clock;
  int64_t ns = 0;
  bool was_waited_for = false;  // by the CPU, which does so in no time
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  Clocks::all().freed(block->memory, block->bytes, block->stream, block->was_recorded);
  std::free(block->memory);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current_index}; }
  void setDevice(c10::Device device) const override { current_index = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index = index_of(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kCheckedDevices; }

  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, index_of(device)), id);
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, current_ids.at(static_cast<size_t>(index_of(device)))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*isHighPriority*/) const override { return stream(device, ++last_id); }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override { return stream(device, ++last_id); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    current_ids.at(static_cast<size_t>(next.device_index())) = next.id();
    return before;
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override { Clocks::all().host_waits("a stream"); }
  void synchronizeDevice(const c10::DeviceIndex /*index*/) const override { Clocks::all().host_waits("a device"); }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex /*index*/, const c10::EventFlag flag) const override {
    if (flag == c10::EventFlag::BACKEND_DEFAULT) ++timing_event_count;
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {.clock = Clocks::all().now(key_of(on)), .ns = Clocks::all().done_ns(key_of(on))};
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event == nullptr) return;
    Clocks::all().learn(key_of(waiting), static_cast<Event*>(event)->clock);
    Clocks::all().not_done_before(key_of(waiting), static_cast<Event*>(event)->ns);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex /*index*/) const override {
    return static_cast<double>(static_cast<Event*>(to)->ns - static_cast<Event*>(from)->ns) / 1e6;
  }
  bool queryEvent(void* event) const override {
    constexpr StreamKey kNoStream = -1;
    const auto* which = static_cast<Event*>(event);
    return which == nullptr || which->was_waited_for || which->ns <= Clocks::all().done_ns(kNoStream);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->was_waited_for = true;
    Clocks::all().host_waits("an event");
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override { delete static_cast<Event*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& /*stream*/) const override {
    if (data.get_context() != nullptr) static_cast<Block*>(data.get_context())->was_recorded = true;
  }
};

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kAlignment = 512;  // a GPU's
    const c10::Device device(c10::kPrivateUse1, current_index);
    if (bytes == 0) return {nullptr, device};
    auto* block = new Block{.memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment),
                            .bytes = static_cast<int64_t>(bytes),
                            .stream = key_of(current_stream_of(device))};
    std::memset(block->memory, 0x7f, bytes);  // what is read before it is written shows
    return {block->memory, block, &free_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kCheckedDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_index = index; }
};

}  // namespace

void register_checked_device() {
  static const bool once = [] {
    c10::register_privateuse1_backend("checked");
    c10::impl::DeviceGuardImplRegistrar(c10::kPrivateUse1, new Guard);
    c10::SetAllocator(c10::kPrivateUse1, new Memory);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
  static_cast<void>(once);
  Clocks::all().forget();
}

int64_t timing_events() {
  return timing_event_count;
}

void begin_operation(c10::Device device, const std::string& name) {
  Clocks::all().begin(key_of(current_stream_of(device)), name);
}

void touch(const at::Tensor& tensor, bool writes, bool lasts) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  Clocks::all().touch(tensor.const_data_ptr(), (last + 1) * static_cast<int64_t>(tensor.element_size()), writes, lasts);
}

at::Tensor alias_on_cpu(const at::Tensor& tensor) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                       c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU)));
  at::Tensor alias =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return alias;
}

}  // namespace firkin::streams
