#include "bench/allreduce_bench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "comm/across_ranks.h"
#include "comm/timed_visit.h"
#include "ddp/sharded/slices.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/timeline.h"
#include "firkin/stats/interval.h"
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
constexpr int64_t kColdBytes = 64 * kMiB;    // buffers are spread over this much memory if caches are to be cold
constexpr int64_t kMostColdBuffers = 1024;
constexpr int64_t kBufferAlignment = 4096;  // bytes; no two buffers share a cache line

int64_t buffer_stride(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// Empties the processor's caches of everything that was used before.
class CacheSweep {
 public:
  // Allocates twice the last-level cache, at least 64 MiB, where the system does not know its cache.
  CacheSweep() : array_(static_cast<size_t>(std::max<int64_t>(64 * kMiB, 2 * int64_t{sysconf(_SC_LEVEL3_CACHE_SIZE)}))) {}

  // Writes to every cache line of the array.
  void operator()() {
    constexpr size_t kLineBytes = 64;
    for (size_t i = 0; i < array_.size(); i += kLineBytes) ++array_[i];
  }

 private:
  std::vector<char> array_;
};

std::vector<TimedSize> sizes_of(const AllReduceBenchOptions& options) {
  std::vector<TimedSize> sizes;
  for (const int64_t bytes : options.sizes) {
    for (const Collective collective : options.collectives) sizes.push_back({bytes, collective});
  }
  return sizes;
}

// With cold caches a sample is one call. After a sweep of the caches some calls wait for the scheduler: the median of
// single calls leaves them out, a median of averages would not.
AllReduceScheduleOptions schedule_options(const AllReduceBenchOptions& options) {
  return {.seconds = options.seconds,
          .seed = options.seed,
          .queue_bytes = kQueueBytes / (options.collectives.size() == 1 ? 1 : kBuffersOfACollective),
          .most_calls = options.cold ? 1 : AllReduceScheduleOptions().most_calls};
}

// Runs the visits of a schedule.
class AllReduceBench {
 public:
  AllReduceBench(const ProcessGroup& group, const AllReduceBenchOptions& options)
      : group_(group), schedule_(sizes_of(options), schedule_options(options)) {
    const std::vector<TimedSize> sizes = sizes_of(options);
    int64_t memory_bytes = 0;
    for (size_t i = 0; i < sizes.size(); ++i) memory_bytes = std::max(memory_bytes, schedule_.queue(i) * buffer_stride(sizes[i].bytes));
    if (options.cold) {
      sweep_ = std::make_unique<CacheSweep>();
      memory_bytes = std::max(memory_bytes, kColdBytes);
    }
    const auto element_bytes = static_cast<int64_t>(at::elementSize(options.dtype));
    const at::Tensor memory = at::zeros({memory_bytes / element_bytes}, at::TensorOptions(options.dtype).device(group.device));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t bytes = sizes[i].bytes;
      Size& size = sizes_.emplace_back(Size{.collective = sizes[i].collective});
      const int64_t buffers = options.cold ? std::min(memory_bytes / buffer_stride(bytes), kMostColdBuffers) : schedule_.queue(i);
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
    size_t next = 0;                       // the first buffer that has not been used since the caches were emptied
  };

  void run(const AllReduceVisit& visit) {
    Size& size = sizes_[visit.size];
    const auto isolated = [&] { return time_calls(group_, size.collective, next_buffers(size, 1)[0], visit.calls); };
    const auto queued = [&] { return time_queue(group_, size.collective, next_buffers(size, static_cast<size_t>(visit.queue))); };
    const int64_t wrong = visit.checks ? check(size, static_cast<size_t>(visit.queue)) : 0;
    if (sweep_) empty_caches(size);
    barrier(group_);
    if (visit.warms_up) isolated();
    schedule_.tell(time_visit(group_, visit, isolated, queued, [this] { return seconds_since(started_); }), wrong);
  }

  // The same buffers again and again, or, with cold caches, `count` that were not used since those were emptied.
  std::span<const at::Tensor> next_buffers(Size& size, size_t count) {
    if (!sweep_) return std::span(size.buffers).first(count);
    if (size.next + count > size.buffers.size()) empty_caches(size);
    size.next += count;
    return std::span(size.buffers).subspan(size.next - count, count);
  }

  void empty_caches(Size& size) {
    (*sweep_)();
    size.next = 0;
    barrier(group_);
  }

  // The number of wrong elements in the results of a whole queue, over all ranks; a queue also shows calls that disturb
  // each other. Leaves zeros, which stay finite however often they are summed.
  int64_t check(const Size& size, size_t queue) {
    const Operation& operation = operation_of(size.collective);
    const std::span<const at::Tensor> buffers = std::span(size.buffers).first(queue);
    for (const at::Tensor& buffer : buffers) operation.fill(group_, buffer);
    time_queue(group_, size.collective, buffers);
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
  std::unique_ptr<CacheSweep> sweep_;
  std::vector<Size> sizes_;
};

constexpr size_t kCalls = 4;
constexpr int64_t kSmallestBytes = 16 * kKiB, kLargestBytes = 16 * kMiB;  // about the range of buckets

std::vector<int64_t> sizes_to_mix(const AllReduceTable& table, int64_t world_size, double seconds) {
  const double longest_s = seconds / static_cast<double>(kCalls * kFewestSamples);
  std::vector<int64_t> sizes;
  for (const AllReduceRow& row : table) {
    const bool is_bucket = row.bytes >= kSmallestBytes && row.bytes <= kLargestBytes;
    if (row.world_size == world_size && row.gap_s && is_bucket && row.median_s <= longest_s) sizes.push_back(row.bytes);
  }
  return sizes;
}

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

MixedQueues measure_mixed_queues(const ProcessGroup& group, const AllReduceTable& table, const MixedQueuesOptions& options) {
  MixedQueues queues;
  const std::vector<int64_t> sizes = sizes_to_mix(table, group.world(), options.seconds);
  if (sizes.size() < 2) return queues;
  const auto started = std::chrono::steady_clock::now();
  const auto largest = static_cast<int64_t>(kLargestBytes / kFloatBytes);
  const at::Tensor memory = at::zeros({kCalls * largest}, at::TensorOptions(at::kFloat).device(group.device));
  std::optional<CacheSweep> sweep;
  if (options.cold) sweep.emplace();
  std::mt19937_64 random(options.seed);
  const auto time_one = [&](std::vector<int64_t>& bytes) {
    std::vector<at::Tensor> buffers;
    for (size_t i = 0; i < kCalls; ++i) {
      bytes.push_back(sizes[random() % sizes.size()]);
      buffers.push_back(memory.narrow(0, static_cast<int64_t>(i) * largest, bytes.back() / kFloatBytes));
    }
    if (sweep) (*sweep)();
    return max_over_ranks(group, {time_queue(group, Collective::kAllReduce, buffers)})[0];
  };
  std::vector<int64_t> warm_up;
  time_one(warm_up);
  const auto time_left = [&] { return of_rank_0(group, options.seconds - seconds_since(started)); };
  while (queues.seconds.size() < kFewestSamples || time_left() > 0) queues.seconds.push_back(time_one(queues.bytes.emplace_back()));
  return queues;
}

std::vector<double> ratios_to(const MixedQueues& queues, const CommCosts& costs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < queues.seconds.size(); ++i) {
    TensorProfile ready_at_once;
    BucketPlan plan;
    for (const int64_t bytes : queues.bytes[i]) {
      plan.buckets.push_back({.first = static_cast<int64_t>(plan.buckets.size()), .count = 1});
      ready_at_once.bytes.push_back(bytes);
      ready_at_once.ready_s.push_back(0);
    }
    ratios.push_back(queues.seconds[i] / simulate(ready_at_once, plan, costs, {}).end_s);
  }
  return ratios;
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
