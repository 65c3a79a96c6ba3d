#include "linked_backend.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/measurements.h"

namespace firkin {

namespace {

LinkQueue::Clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<LinkQueue::Clock::duration>(std::chrono::duration<double>(seconds));
}

using Units = std::array<std::pair<std::string_view, double>, 5>;

constexpr Units kRateUnits = {{{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}}};
constexpr Units kTimeUnits = {{{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
constexpr double kSlowestRate = 1e3;    // bit/s
constexpr double kLongestLatency = 60;  // seconds

constexpr double kPayload = 1448.0 / 1514;  // see all_reduce_time()

// "200mbit" -> 2e8. None unless the text is a number followed by one of the units.
std::optional<double> parse_with_unit(std::string_view text, const Units& units) {
  double number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
  for (const auto& [name, factor] : units) {
    if (!name.empty() && name == std::string_view(rest, static_cast<size_t>(end - rest))) return number * factor;
  }
  return std::nullopt;
}

std::string format_rate(double bits_per_s) {
  static constexpr std::array kNames = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
  size_t unit = 0;
  while (bits_per_s >= 999.5 && unit + 1 < kNames.size()) {
    bits_per_s /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bits_per_s, kNames[unit]);
}

ModelledLink link_of_table(const std::string& file, int64_t world) {
  const AllReduceTable table = read_allreduce_csv(file);
  try {
    return {.world = world, .table = comm_costs(table, world), .file = file};
  } catch (const InputError& error) {
    throw InputError(fmt::format("--link {}: {}", file, error.what()));
  }
}

LinkTime time_over(const ModelledLink& link, double steps, double bytes_on_wire) {
  const double wire_s = bytes_on_wire * 8 / (kPayload * link.bits_per_s);
  const double alone_s = wire_s + steps * link.latency_s;
  return {alone_s, std::max(wire_s, alone_s / 2)};
}

LinkTime time_in(const CommCosts& costs, int64_t bytes) {
  return {costs.isolated(static_cast<double>(bytes)), costs.gap(static_cast<double>(bytes))};
}

}  // namespace

struct LinkQueue::Line {
  void run();

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<LinkTransfer>> transfers;
  Clock::time_point last_end = {};  // the modelled end of the previous transfer; at first long ago
  bool closing = false;
};

LinkQueue::LinkQueue() : line_(std::make_shared<Line>()), timer_([line = line_] { line->run(); }) {}

LinkQueue::~LinkQueue() {
  {
    const std::lock_guard lock(line_->mutex);
    line_->closing = true;
  }
  line_->changed.notify_one();
  if (timer_.get_id() == std::this_thread::get_id()) {
    timer_.detach();  // the timer itself runs this destructor: waiting here would take for ever
  } else {
    timer_.join();
  }
}

void LinkQueue::add(const std::shared_ptr<LinkTransfer>& transfer) {
  const std::lock_guard lock(line_->mutex);
  line_->transfers.push_back(transfer);
}

void LinkQueue::note(LinkTransfer::Moment& moment) {
  const std::lock_guard lock(line_->mutex);
  moment = Clock::now();
  line_->changed.notify_one();
}

void LinkQueue::fail(const std::shared_ptr<LinkTransfer>& transfer, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(line_->mutex);
    const auto place = std::ranges::find(line_->transfers, transfer);
    if (place == line_->transfers.end()) return;  // it has failed already
    line_->transfers.erase(place);
  }
  line_->changed.notify_one();
  transfer->complete(error);
}

void LinkQueue::Line::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds: the default, 50 us, is the time of a small collective
  std::unique_lock lock(mutex);
  for (;;) {
    if (transfers.empty() && closing) return;
    if (transfers.empty() || !transfers.front()->all_arrived_at || !transfers.front()->data_ready_at) {
      changed.wait(lock);
      continue;
    }
    const LinkTransfer& first = *transfers.front();
    const auto end = std::max(*first.all_arrived_at + ticks(first.time.alone_s), last_end + ticks(first.time.gap_s));
    if (Clock::now() < end) {
      changed.wait_until(lock, end);  // the queue may be another afterwards: a transfer may have failed
      continue;
    }
    std::shared_ptr<LinkTransfer> transfer = std::move(transfers.front());
    transfers.pop_front();
    last_end = end;
    lock.unlock();
    transfer->complete(nullptr);
    transfer = nullptr;  // frees what it holds, without the lock
    lock.lock();
  }
}

// ---- Collectives on CPUs, and on one device.

namespace {

using c10::impl::VirtualGuardImpl;

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

  // move: has a backend move the data.
  virtual Work start(const Collective& collective, c10::function_ref<Work(c10d::Backend& inner)> move) = 0;

  const ModelledLink link_;
};

class LinkedBackend final : public LinkedCollectives {
 public:
  LinkedBackend(c10::intrusive_ptr<c10d::Backend> inner, ModelledLink link)
      : LinkedCollectives(inner->getRank(), inner->getSize(), std::move(link)),
        queue_(std::make_shared<LinkQueue>()),
        inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }  // NOLINT(readability-const-return-type)
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }

  Work barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

  // Not timed here: start_or() knows how long its messages are, and waits for the link itself.
  Work send(std::vector<at::Tensor>& tensors, int rank, int tag) override { return inner_->send(tensors, rank, tag); }
  Work recv(std::vector<at::Tensor>& tensors, int rank, int tag) override { return inner_->recv(tensors, rank, tag); }

 private:
  Work start(const Collective& collective, c10::function_ref<Work(c10d::Backend& inner)> move) override {
    const auto work = c10::make_intrusive<OwnWork>(rank_, collective.type, collective.name, collective.tensors);
    auto transfer = std::make_shared<LinkTransfer>(
        LinkTransfer{.time = collective.time, .complete = [work](std::exception_ptr error) { work->complete(std::move(error)); }});
    // The trace shows the link's times, not those of the data's own move.
    const at::DisableRecordFunctionGuard unrecorded;
    std::vector<at::Tensor> roll_call{at::zeros({1})};
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
            queue->note((*transfer).*moment);
          }
        },
        /*uses_future=*/false);
  }

  std::shared_ptr<LinkQueue> queue_;
  c10::intrusive_ptr<c10d::Backend> inner_;  // destroyed first: it ends what is in flight, so that the queue can end
};

// Complete for the CPU at once, and for a stream when that has waited for it.
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

  // Over Gloo it is an all-reduce underneath, so that Firkin uses it on devices alone.
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return start({c10d::OpType::_REDUCE_SCATTER_BASE, "", {output}, share_time(link_, bytes_of({input})), options.timeout, input}, {});
  }

 private:
  void let_wait(const c10::Stream& later, const c10::Stream& earlier) {
    order_.record(earlier);
    order_.block(later);
  }

  // What would move between ranks is here already.
  Work start(const Collective& collective, c10::function_ref<Work(c10d::Backend& inner)> /*move*/) override {
    const auto& [type, name, tensors, time, timeout, input] = collective;
    const std::lock_guard lock(mutex_);
    const c10::DeviceGuard device(device_);
    const at::NoGradGuard no_grad;
    const VirtualGuardImpl guard(device_.type());
    let_wait(joining_, guard.getStream(device_));
    DeviceTimer::Moment all_arrived_at = 0;
    {
      const c10::StreamGuard joining(joining_);  // not the link's, which may be busy with the collective before
      all_arrived_at = timer_->note();
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

// ---- How long a collective takes.

ModelledLink parse_link(const std::string& text, int64_t world) {
  if (world < 1) throw InputError(fmt::format("--link {}: timed for {} ranks; expected at least 1", text, world));
  if (text.ends_with(".csv")) return link_of_table(text, world);
  const size_t comma = text.find(',');
  const auto rate = parse_with_unit(std::string_view(text).substr(0, comma), kRateUnits);
  const auto latency = comma == std::string::npos ? std::optional(kDefaultLinkLatency)
                                                  : parse_with_unit(std::string_view(text).substr(comma + 1), kTimeUnits);
  if (!rate || !latency) {
    throw InputError(fmt::format("--link {}: expected RATE[,LATENCY] such as 1gbit or 200mbit,1ms, or an allreduce.csv", text));
  }
  if (!(*rate >= kSlowestRate && *rate <= 1e15)) throw InputError(fmt::format("--link {}: expected a rate from 1kbit to 1000tbit", text));
  if (*latency > kLongestLatency) throw InputError(fmt::format("--link {}: expected a latency of at most 60s", text));
  return {.world = world, .bits_per_s = *rate, .latency_s = *latency};
}

std::string describe(const ModelledLink& link) {
  const std::string ranks = fmt::format("{} {}", link.world, link.world == 1 ? "rank" : "ranks");
  if (link.table) return fmt::format("{}, {}", link.file, ranks);
  return fmt::format("{}, {}, {}", format_rate(link.bits_per_s), format_seconds(link.latency_s), ranks);
}

LinkTime all_reduce_time(const ModelledLink& link, int64_t bytes) {
  if (link.table) return time_in(*link.table, bytes);
  const auto n = static_cast<double>(link.world);
  return time_over(link, 2 * (n - 1), 2 * (n - 1) / n * static_cast<double>(bytes));
}

LinkTime share_time(const ModelledLink& link, int64_t bytes) {
  const LinkTime both = all_reduce_time(link, bytes);
  return {both.alone_s / 2, both.gap_s / 2};
}

LinkTime broadcast_time(const ModelledLink& link, int64_t bytes) {
  if (link.table) return time_in(*link.table, bytes);
  const double steps = std::bit_width(static_cast<uint64_t>(link.world - 1));
  return time_over(link, steps, steps * static_cast<double>(bytes));
}

double agreement_time(const ModelledLink& link, int64_t bytes) {
  return broadcast_time(link, bytes).alone_s;  // it has as many steps of as many bytes
}

}  // namespace firkin
