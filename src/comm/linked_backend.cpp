// Backends over a modelled link: a collective ends no earlier than the link would have carried it.
#include "backends.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "device_time.h"

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// One collective. The lock of the queue that it is in guards its fields.
struct LinkTransfer {
  using Moment = std::optional<Clock::time_point>;

  LinkTime time;
  c10::intrusive_ptr<OwnWork> work;      // complete when the data have moved and the link would have carried them
  Moment all_arrived_at = std::nullopt;  // when the last rank has joined
  Moment data_ready_at = std::nullopt;
};

// A link's transfers, first in, first out. Thread-safe.
class LinkQueue {
 public:
  void add(const std::shared_ptr<LinkTransfer>& transfer) {
    const std::lock_guard lock(mutex_);
    transfers_.push_back(transfer);
  }

  // Sets a transfer's moment to now.
  void set_to_now(LinkTransfer::Moment& moment) {
    const std::lock_guard lock(mutex_);
    moment = Clock::now();
    changed_.notify_one();
  }

  // Fails a transfer at once, wherever it is in the queue, unless it has failed already.
  void fail(const std::shared_ptr<LinkTransfer>& transfer, const std::exception_ptr& error) {
    {
      const std::lock_guard lock(mutex_);
      if (std::erase(transfers_, transfer) == 0) return;
      changed_.notify_one();
    }
    transfer->work->complete(error);
  }

  // Makes run() return once the queue is empty.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_one();
  }

  // Completes each transfer when it ends over the link. Returns after close().
  void run() {
    prctl(PR_SET_TIMERSLACK, 1UL);  // 1 ns: Linux's default of 50 us is as long as a small collective takes
    std::unique_lock lock(mutex_);
    for (;;) {
      if (transfers_.empty() && is_closing_) return;
      if (transfers_.empty() || !transfers_.front()->all_arrived_at || !transfers_.front()->data_ready_at) {
        changed_.wait(lock);
        continue;
      }
      const LinkTransfer& first = *transfers_.front();
      const auto end = std::max(*first.all_arrived_at + ticks(first.time.alone_s), last_end_ + ticks(first.time.gap_s));
      if (Clock::now() < end) {
        changed_.wait_until(lock, end);  // then checks again: a transfer may have failed meanwhile
        continue;
      }
      std::shared_ptr<LinkTransfer> transfer = std::move(transfers_.front());
      transfers_.pop_front();
      last_end_ = end;
      lock.unlock();
      transfer->work->complete(nullptr);
      transfer = nullptr;  // what it frees may take this lock
      lock.lock();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<LinkTransfer>> transfers_;
  Clock::time_point last_end_ = {};  // when the previous transfer ended over the link; at first long ago
  bool is_closing_ = false;
};

using c10::impl::VirtualGuardImpl;

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// The collectives that a link carries. Others are refused.
class LinkedCollectives : public c10d::Backend {
 public:
  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return start({c10d::OpType::ALLREDUCE, "gloo:all_reduce", tensors, all_reduce_time(link_, bytes_of(tensors)), options.timeout},
                 [&](c10d::Backend& inner) { return inner.allreduce(tensors, options); });
  }

  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return start({c10d::OpType::BROADCAST, "gloo:broadcast", tensors, broadcast_time(link_, bytes_of(tensors)), options.timeout},
                 [&](c10d::Backend& inner) { return inner.broadcast(tensors, options); });
  }

  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_split, std::vector<int64_t>& input_split,
                     const c10d::AllToAllOptions& options) override {
    return start({c10d::OpType::ALLTOALL_BASE, "gloo:all_to_all", {output}, share_time(link_, bytes_of({output})), options.timeout, input},
                 [&](c10d::Backend& inner) { return inner.alltoall_base(output, input, output_split, input_split, options); });
  }

  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return start(
        {c10d::OpType::_ALLGATHER_BASE, "gloo:all_gather", {output}, share_time(link_, bytes_of({output})), options.timeout, input},
        [&](c10d::Backend& inner) { return inner._allgather_base(output, input, options); });
  }

  Work allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions& options) override {
    return start(
        {c10d::OpType::ALLGATHER, "gloo:all_gather", outputs.at(0), share_time(link_, bytes_of(outputs[0])), options.timeout, inputs.at(0)},
        [&](c10d::Backend& inner) { return inner.allgather(outputs, inputs, options); });
  }

 protected:
  struct Collective {
    c10d::OpType type;
    const char* name;
    std::vector<at::Tensor> tensors;  // where the result goes
    LinkTime time;
    std::chrono::milliseconds timeout;
    at::Tensor input = {};  // undefined: the tensors themselves
  };

  LinkedCollectives(int rank, int size, ModelledLink link) : c10d::Backend(rank, size), link_(std::move(link)) {}

  // move: makes `inner` move the data.
  virtual Work start(const Collective& collective, c10::function_ref<Work(c10d::Backend& inner)> move) = 0;

  const ModelledLink link_;
};

class LinkedBackend final : public LinkedCollectives {
 public:
  LinkedBackend(c10::intrusive_ptr<c10d::Backend> inner, ModelledLink link)
      : LinkedCollectives(inner->getRank(), inner->getSize(), std::move(link)), inner_(std::move(inner)) {}

  ~LinkedBackend() override {
    inner_ = nullptr;  // ends what is in flight, so that the queue becomes empty
    queue_->close();
    if (timer_.get_id() == std::this_thread::get_id()) {
      timer_.detach();  // it cannot wait for itself
    } else {
      timer_.join();
    }
  }

  const std::string getBackendName() const override { return inner_->getBackendName(); }  // NOLINT(readability-const-return-type)
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }

  Work barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

  // Not timed: start_or(), which calls these, waits for the link itself.
  Work send(std::vector<at::Tensor>& tensors, int rank, int tag) override { return inner_->send(tensors, rank, tag); }
  Work recv(std::vector<at::Tensor>& tensors, int rank, int tag) override { return inner_->recv(tensors, rank, tag); }

 private:
  Work start(const Collective& collective, c10::function_ref<Work(c10d::Backend& inner)> move) override {
    const auto work = c10::make_intrusive<OwnWork>(rank_, collective.type, collective.name, collective.tensors);
    const auto transfer = std::make_shared<LinkTransfer>(LinkTransfer{.time = collective.time, .work = work});
    // In a trace only `work` is shown, which has the link's times.
    const at::DisableRecordFunctionGuard unrecorded;
    std::vector<at::Tensor> roll_call{at::zeros({1})};  // see Note [When the last rank joins] in backends.h
    c10d::AllreduceOptions options;
    options.timeout = collective.timeout;
    const Work joining = inner_->allreduce(roll_call, options);
    const Work moving = move(*inner_);
    queue_->add(transfer);
    on_end(joining, transfer, &LinkTransfer::all_arrived_at);
    on_end(moving, transfer, &LinkTransfer::data_ready_at);
    return work;
  }

  void on_end(const Work& inner, const std::shared_ptr<LinkTransfer>& transfer, LinkTransfer::Moment LinkTransfer::*moment) {
    inner->getFuture()->addCallback(
        [queue = queue_, transfer, moment](c10::ivalue::Future& future) {
          if (future.hasError()) {
            queue->fail(transfer, future.exception_ptr());
          } else {
            queue->set_to_now((*transfer).*moment);
          }
        },
        /*uses_future=*/false);
  }

  const std::shared_ptr<LinkQueue> queue_ = std::make_shared<LinkQueue>();  // shared with the timer and with callbacks
  std::thread timer_{[queue = queue_] { queue->run(); }};
  c10::intrusive_ptr<c10d::Backend> inner_;
};

// Complete for the CPU at once, and for a stream once the stream has waited for it.
class LinkedDeviceWork final : public c10d::Work {
 public:
  // The current stream must be the link's.
  LinkedDeviceWork(c10d::OpType type, std::vector<at::Tensor> tensors, const c10::Stream& link)
      : c10d::Work(0, type),
        tensors_(std::move(tensors)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector{link.device()})),
        end_(link.device_type()) {
    end_.record(link);
    future_->markCompleted(c10::IValue(tensors_));
  }

  bool isCompleted() override { return end_.query(); }
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void synchronize() override { future_->wait(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::Event end_;
};

class LinkedDevice final : public LinkedCollectives {
 public:
  LinkedDevice(ModelledLink link, c10::Device device, std::unique_ptr<DeviceTimer> timer)
      : LinkedCollectives(0, 1, std::move(link)),
        device_(device),
        timer_(std::move(timer)),
        joining_(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        carrying_(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        order_(device.type()) {}

  const std::string getBackendName() const override { return "modelled link"; }  // NOLINT(readability-const-return-type)

  // Not in LinkedCollectives: Firkin calls it on devices only, because over Gloo it is an all-reduce underneath.
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return start({c10d::OpType::_REDUCE_SCATTER_BASE, "", {output}, share_time(link_, bytes_of({input})), options.timeout, input}, {});
  }

 private:
  void let_wait(const c10::Stream& later, const c10::Stream& earlier) {
    order_.record(earlier);
    order_.block(later);
  }

  // Moves nothing: this rank is the only one.
  Work start(const Collective& collective, c10::function_ref<Work(c10d::Backend& inner)> /*move*/) override {
    const auto& [type, name, tensors, time, timeout, input] = collective;
    const std::lock_guard lock(mutex_);
    const c10::DeviceGuard device(device_);
    const at::NoGradGuard no_grad;
    const VirtualGuardImpl guard(device_.type());
    let_wait(joining_, guard.getStream(device_));
    DeviceTimer::Moment all_arrived_at = 0;
    {
      const c10::StreamGuard joining(joining_);  // not on carrying_, which may still carry the collective before
      all_arrived_at = timer_->stamp();
    }
    let_wait(carrying_, joining_);
    const c10::StreamGuard carrying(carrying_);
    if (input.defined() && !input.is_alias_of(tensors[0])) {
      tensors[0].copy_(input);
      for (const at::Tensor& used : {tensors[0], input}) guard.recordDataPtrOnStream(used.storage().data_ptr(), carrying_);
    }
    std::optional<DeviceTimer::After> gap;
    if (last_end_) gap = {*last_end_, time.gap_s};
    last_end_ = timer_->wait({all_arrived_at, time.alone_s}, gap);
    return c10::make_intrusive<LinkedDeviceWork>(type, tensors, carrying_);
  }

  c10::Device device_;
  std::mutex mutex_;  // guards what follows
  std::unique_ptr<DeviceTimer> timer_;
  c10::Stream joining_, carrying_;
  c10::Event order_;
  std::optional<DeviceTimer::Moment> last_end_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link) {
  return c10::make_intrusive<LinkedBackend>(std::move(inner), link);
}

c10::intrusive_ptr<c10d::Backend> make_linked_device(const ModelledLink& link, c10::Device device, std::unique_ptr<DeviceTimer> timer) {
  return c10::make_intrusive<LinkedDevice>(link, device, std::move(timer));
}

}  // namespace firkin
