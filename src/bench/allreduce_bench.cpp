#include "bench/allreduce_bench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "comm/across_ranks.h"
#include "comm/timed_visit.h"
#include "ddp/sharded/slices.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "workload/workload.h"

namespace firkin {
namespace {

// Calls body(piece of the buffer, index of its first element, its known sums), one piece of memory after another.
template <typename Body>
void for_known_sums(const at::Tensor& buffer, int64_t first_index, Body body) {
  constexpr int64_t kPeriod = 127;                 // a prime, so that chunks of a power of two never begin alike
  constexpr int64_t kPiece = kPeriod * (1 << 14);  // elements
  const at::TensorOptions whole = at::TensorOptions(at::kLong).device(buffer.device());
  const at::Tensor period = at::arange(first_index, first_index + kPeriod, whole).remainder(kPeriod).to(at::kFloat) + 1;
  const at::Tensor sums = period.repeat({std::min(kPiece, buffer.numel()) / kPeriod + 1});
  for (int64_t first = 0; first < buffer.numel(); first += kPiece) {
    const int64_t count = std::min(kPiece, buffer.numel() - first);
    body(buffer.narrow(0, first, count), first, sums.narrow(0, 0, count));
  }
}

using Finish = std::function<void()>;

Finish start_summing(const ProcessGroup& group, const at::Tensor& buffer) {
  return [&group, work = start_all_reduce(group, buffer)] { wait(group, work, "an all-reduce"); };
}

Finish start_reduce_scatter(const ProcessGroup& group, const at::Tensor& bucket) {
  const auto slices = std::make_shared<SlicedBucket>();
  return [&group, bucket, slices, reduction = slices->launch(group, bucket)] {
    if (reduction.finish) reduction.finish();
    wait(group, reduction.work, "a reduce-scatter");
    slices->finish(group, bucket);
  };
}

Finish start_gather(const ProcessGroup& group, const at::Tensor& bucket) {
  const auto slices = std::make_shared<SlicedBucket>();
  slices->gather(group, bucket);
  return [&group, slices] { slices->wait_for_gather(group, [] { return std::string("an all-gather"); }); };
}

void fill_own_slice(const ProcessGroup& group, const at::Tensor& bucket) {
  fill_with_known_values(bucket, 0, 1);
  const at::Tensor own = SlicedBucket().own(group, bucket).clone();
  bucket.zero_();
  SlicedBucket().own(group, bucket).copy_(own);
}

struct Operation {
  void (*fill)(const ProcessGroup& group, const at::Tensor& buffer);  // with what has known sums
  Finish (*start)(const ProcessGroup& group, const at::Tensor& buffer);
  int64_t (*wrong)(const ProcessGroup& group, const at::Tensor& buffer);
};

// Indexed by Collective.
constexpr std::array<Operation, kCollectives.size()> kOperations = {{
    {[](const ProcessGroup& group, const at::Tensor& buffer) { fill_with_known_values(buffer, group.rank, group.size); }, start_summing,
     [](const ProcessGroup&, const at::Tensor& buffer) { return count_wrong(buffer); }},
    {[](const ProcessGroup& group, const at::Tensor& buffer) { fill_with_known_values(buffer, group.rank, group.size); },
     start_reduce_scatter,
     [](const ProcessGroup& group, const at::Tensor& buffer) {
       return count_wrong(SlicedBucket().own(group, buffer), group.rank * (buffer.numel() / group.size));
     }},
    {fill_own_slice, start_gather, [](const ProcessGroup&, const at::Tensor& buffer) { return count_wrong(buffer); }},
}};

const Operation& operation_of(Collective collective) {
  return kOperations[static_cast<size_t>(collective)];
}

constexpr int64_t kQueueBytes = 256 * kMiB;  // the limit for all buffers of a queue together
constexpr int64_t kBufferAlignment = 4096;   // bytes; no two buffers share a cache line

int64_t buffer_stride(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

std::vector<TimedSize> sizes_of(const AllReduceBenchOptions& options) {
  std::vector<TimedSize> sizes;
  for (const int64_t bytes : options.sizes) {
    for (const Collective collective : options.collectives) sizes.push_back({bytes, collective});
  }
  return sizes;
}

AllReduceScheduleOptions schedule_options(const AllReduceBenchOptions& options) {
  return {.seconds = options.seconds,
          .seed = options.seed,
          .queue_bytes = kQueueBytes / (options.collectives.size() == 1 ? 1 : kBuffersOfACollective)};
}

// Runs the visits of a schedule.
class AllReduceBench {
 public:
  AllReduceBench(const ProcessGroup& group, const AllReduceBenchOptions& options)
      : group_(group), schedule_(sizes_of(options), schedule_options(options)) {
    const std::vector<TimedSize> sizes = sizes_of(options);
    int64_t memory_bytes = 0;
    for (size_t i = 0; i < sizes.size(); ++i) memory_bytes = std::max(memory_bytes, schedule_.queue(i) * buffer_stride(sizes[i].bytes));
    const auto element_bytes = static_cast<int64_t>(at::elementSize(options.dtype));
    const at::Tensor memory = at::zeros({memory_bytes / element_bytes}, at::TensorOptions(options.dtype).device(group.device));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t bytes = sizes[i].bytes;
      Size& size = sizes_.emplace_back(Size{.collective = sizes[i].collective});
      const int64_t buffers = schedule_.queue(i);
      const int64_t apart = memory_bytes / buffers / kBufferAlignment * kBufferAlignment;
      for (int64_t buffer = 0; buffer < buffers; ++buffer) {
        size.buffers.push_back(memory.narrow(0, buffer * apart / element_bytes, bytes / element_bytes));
      }
    }
  }

  std::vector<AllReduceSeries> run(const std::function<void(const std::string&)>& on_progress) {
    while (const std::optional<AllReduceVisit> visit = schedule_.next()) {
      const int rounds = schedule_.rounds();
      run(*visit);
      if (on_progress && schedule_.rounds() > rounds) on_progress(fmt::format("round {}", schedule_.rounds()));
    }
    return schedule_.series();
  }

 private:
  struct Size {
    Collective collective;
    std::vector<at::Tensor> buffers = {};  // slices of the one allocation that all sizes share
  };

  void run(const AllReduceVisit& visit) {
    const Size& size = sizes_[visit.size];
    const std::span<const at::Tensor> queue = std::span(size.buffers).first(static_cast<size_t>(visit.queue));
    const auto isolated = [&] { return time_calls(group_, size.collective, size.buffers[0], visit.calls); };
    const auto queued = [&] { return time_queue(group_, size.collective, queue); };
    const int64_t wrong = visit.checks ? check(size.collective, queue) : 0;
    barrier(group_);
    if (visit.warms_up) isolated();
    schedule_.tell(time_visit(group_, visit, isolated, queued, [this] { return seconds_since(started_); }), wrong);
  }

  // The number of wrong elements in the results of a whole queue, over all ranks; a queue also shows calls that disturb
  // each other. Leaves zeros, which stay finite however often they are summed.
  int64_t check(Collective collective, std::span<const at::Tensor> buffers) {
    const Operation& operation = operation_of(collective);
    for (const at::Tensor& buffer : buffers) operation.fill(group_, buffer);
    time_queue(group_, collective, buffers);
    int64_t wrong = 0;
    for (const at::Tensor& buffer : buffers) {
      wrong += operation.wrong(group_, buffer);
      buffer.zero_();
    }
    return std::llround(sum_over_ranks(group_, static_cast<double>(wrong)));
  }

  const ProcessGroup& group_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  AllReduceSchedule schedule_;
  std::vector<Size> sizes_;
};

}  // namespace

void fill_with_known_values(const at::Tensor& buffer, int rank, int world_size) {
  for_known_sums(buffer, 0, [&](const at::Tensor& piece, int64_t first, const at::Tensor& sums) {
    const at::Tensor owner = at::arange(first, first + piece.numel(), sums.options().dtype(at::kLong)).remainder(world_size);
    piece.copy_(sums * (owner == rank));
  });
}

int64_t count_wrong(const at::Tensor& buffer, int64_t first) {
  int64_t wrong = 0;
  for_known_sums(buffer, first, [&](const at::Tensor& piece, int64_t /*first*/, const at::Tensor& sums) {
    wrong += at::ne(piece.to(at::kFloat), sums).sum().item<int64_t>();
  });
  return wrong;
}

double time_calls(const ProcessGroup& group, Collective collective, const at::Tensor& buffer, int calls) {
  const auto start = operation_of(collective).start;
  const DeviceTime started = device_now(buffer.device());
  for (int i = 0; i < calls; ++i) start(group, buffer)();
  return seconds_between(started, device_now(buffer.device())) / calls;
}

double time_queue(const ProcessGroup& group, Collective collective, std::span<const at::Tensor> buffers) {
  barrier(group);
  const auto start = operation_of(collective).start;
  std::vector<Finish> queued;
  const DeviceTime started = device_now(group.device);
  for (const at::Tensor& buffer : buffers) queued.push_back(start(group, buffer));
  for (const Finish& finish : queued) finish();
  return seconds_between(started, device_now(group.device));
}

std::vector<AllReduceSeries> measure_allreduce(const ProcessGroup& group, const AllReduceBenchOptions& options) {
  if (options.sizes.empty() || !(options.seconds > 0)) throw InputError("all-reduce benchmark: expected sizes, and seconds above 0");
  const bool slices = std::ranges::any_of(options.collectives, [](Collective each) { return each != Collective::kAllReduce; });
  if (slices && group.size < 2) throw InputError("reduce-scatter and all-gather on one rank; expected two or more");
  const int64_t least_bytes = static_cast<int64_t>(at::elementSize(options.dtype)) * (slices ? group.size : 1);
  for (const int64_t bytes : options.sizes) {
    check_allreduce_size(bytes);
    if (bytes % least_bytes != 0) throw InputError(fmt::format("all-reduce size {}: expected a multiple of {} bytes", bytes, least_bytes));
  }
  return AllReduceBench(group, options).run(options.on_progress);
}

std::vector<int64_t> sliced_sizes(std::vector<int64_t> sizes, int64_t ranks, at::ScalarType dtype) {
  const int64_t step = ranks * std::max(kFloatBytes, static_cast<int64_t>(at::elementSize(dtype)));
  for (int64_t& bytes : sizes) bytes = (bytes + step - 1) / step * step;
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

AllReduceSamples samples_of(const std::vector<AllReduceSeries>& series) {
  AllReduceSamples samples;
  for (const AllReduceSeries& size : series) {
    samples.bytes.push_back(size.bytes);
    samples.isolated_s.push_back(size.isolated_s);
    samples.gap_s.push_back(size.gap_s);
  }
  return samples;
}

}  // namespace firkin
