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
#include <numeric>
#include <optional>
#include <random>

#include "comm/across_ranks.h"
#include "ddp/sharded/slices.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/timeline.h"
#include "firkin/stats/interval.h"
#include "firkin/stats/summary.h"
#include "workload/workload.h"

namespace firkin {
namespace {

// The sums, a piece of memory at a time: body(piece of the buffer, its sums).
template <typename Body>
void for_known_sums(const at::Tensor& buffer, int64_t first_index, Body body) {
  constexpr int64_t kPeriod = 127;                 // a prime, so that chunks of a power of two never begin alike
  constexpr int64_t kPiece = kPeriod * (1 << 14);  // elements
  const at::Tensor period = at::arange(first_index, first_index + kPeriod, at::kLong).remainder(kPeriod).to(at::kFloat) + 1;
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

// By Collective.
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

using Clock = std::chrono::steady_clock;

constexpr int kMostSamplesPerVisit = 1000;
constexpr double kSampleSeconds = 0.5e-3;  // what the calls of one sample take together, about
constexpr int kMostCallsPerSample = 100;
constexpr int kQueueLength = 4;                     // calls queued back to back for the gap: about as many as a step has under way
constexpr int64_t kLargestQueueBytes = 256 * kMiB;  // of all queued buffers together
constexpr int64_t kColdBytes = 64 * kMiB;           // over which buffers are spread when caches are to be cold
constexpr int64_t kMostColdBuffers = 1024;
constexpr int64_t kBufferAlignment = 4096;  // bytes; no two buffers share a cache line

// buffers: of each call.
int64_t queue_length(int64_t bytes, int64_t buffers = 1) {
  return std::clamp<int64_t>(kLargestQueueBytes / (buffers * bytes), 1, kQueueLength);
}

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

// One size under measurement, with one collective.
struct SizeState {
  AllReduceSeries series;
  std::vector<at::Tensor> buffers;  // slices of the one allocation that all sizes share
  size_t queue = 1;                 // calls under way at once for the gap; with 1 it is not measured
  size_t next = 0;                  // the first buffer that was not used since the caches were emptied
  double isolated_cost_s = 0;       // of a sample, with what comes before it; the same on every rank
  double queued_cost_s = 0;
};

class AllReduceBench {
 public:
  AllReduceBench(const ProcessGroup& group, const AllReduceBenchOptions& options) : group_(group), started_(Clock::now()) {
    deadline_s_ = options.seconds;
    int64_t memory_bytes = 0;
    const auto queue_of = [buffers = options.collectives.size() == 1 ? 1 : kBuffersOfACollective](int64_t bytes) {
      return queue_length(bytes, buffers);
    };
    for (const int64_t bytes : options.sizes) memory_bytes = std::max(memory_bytes, queue_of(bytes) * buffer_stride(bytes));
    if (options.cold) {
      sweep_ = std::make_unique<CacheSweep>();
      memory_bytes = std::max(memory_bytes, kColdBytes);
    }
    const auto element_bytes = static_cast<int64_t>(at::elementSize(options.dtype));
    const at::Tensor memory = at::zeros({memory_bytes / element_bytes}, at::TensorOptions(options.dtype).device(group.device));
    for (const int64_t bytes : options.sizes) {
      SizeState size;
      size.series.bytes = bytes;
      size.queue = static_cast<size_t>(queue_of(bytes));
      const int64_t buffers = options.cold ? std::min(memory_bytes / buffer_stride(bytes), kMostColdBuffers) : queue_of(bytes);
      const int64_t apart = memory_bytes / buffers / kBufferAlignment * kBufferAlignment;
      for (int64_t i = 0; i < buffers; ++i) {
        size.buffers.push_back(memory.narrow(0, i * apart / element_bytes, bytes / element_bytes));
      }
      for (const Collective collective : options.collectives) {
        size.series.collective = collective;
        sizes_.push_back(size);
      }
    }
  }

  std::vector<AllReduceSeries> run(uint64_t seed, const std::function<void(const std::string&)>& on_progress) {
    std::vector<size_t> order(sizes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    for (SizeState& size : sizes_) prepare(size);
    for (int round = 0; round < kMostRounds; ++round) {
      std::ranges::shuffle(order, random);
      for (size_t i = 0; i < order.size(); ++i) {
        const double visits_left = static_cast<double>((kMostRounds - round) * order.size() - i);
        visit(sizes_[order[i]], time_left() / visits_left);
      }
      if (on_progress) on_progress(fmt::format("round {}", round + 1));
      if (round + 1 >= kFewestRounds && time_left() <= 0) break;
    }
    std::vector<AllReduceSeries> result;
    for (SizeState& size : sizes_) {
      check(size);
      const double isolated_s = median(size.series.isolated_s);
      for (double& sample : size.series.gap_s) sample = queued_gap_s(sample, isolated_s, static_cast<double>(size.queue));
      result.push_back(std::move(size.series));
    }
    return result;
  }

 private:
  // Seconds, the same on every rank. The checks at the end take about as long as the preparation.
  double time_left() const { return of_rank_0(group_, deadline_s_ - seconds_since(started_) - check_cost_s_); }

  // The same buffers again and again, or, with cold caches, `count` that were not used since those were emptied.
  std::span<const at::Tensor> next_buffers(SizeState& size, size_t count) {
    if (!sweep_) return std::span(size.buffers).first(count);
    if (size.next + count > size.buffers.size()) empty_caches(size);
    size.next += count;
    return std::span(size.buffers).subspan(size.next - count, count);
  }

  void empty_caches(SizeState& size) {
    (*sweep_)();
    size.next = 0;
    barrier(group_);
  }

  // Seconds per call on this rank.
  double time_isolated(SizeState& size) {
    return time_calls(group_, size.series.collective, next_buffers(size, 1)[0], size.series.calls_per_sample);
  }
  // Seconds of a whole queue.
  double time_queued(SizeState& size) { return time_queue(group_, size.series.collective, next_buffers(size, size.queue)); }

  // A whole queue, so that calls that disturb each other show as well. Leaves zeros, which stay finite when summed again and again.
  void check(SizeState& size) {
    size.next = 0;
    const Operation& operation = operation_of(size.series.collective);
    const std::span<const at::Tensor> buffers = std::span(size.buffers).first(size.queue);
    for (const at::Tensor& buffer : buffers) operation.fill(group_, buffer);
    time_queued(size);
    int64_t wrong = 0;
    for (const at::Tensor& buffer : buffers) {
      wrong += operation.wrong(group_, buffer);
      buffer.zero_();
    }
    size.series.wrong += std::llround(sum_over_ranks(group_, static_cast<double>(wrong)));
  }

  // Touches connections and pages, checks, and finds out how long a sample takes.
  void prepare(SizeState& size) {
    const auto started = Clock::now();
    check(size);
    check_cost_s_ += seconds_since(started);
    double once_s = max_over_ranks(group_, {time_isolated(size)})[0];
    if (once_s < kSampleSeconds * kMostCallsPerSample) {
      once_s = std::min(once_s, std::ranges::min(max_over_ranks(group_, {time_isolated(size), time_isolated(size)})));
    }
    // After a sweep many a call waits for the scheduler: the median of single calls leaves those out, that of averages would not.
    const double most = sweep_ ? 1 : kMostCallsPerSample;
    size.series.calls_per_sample = static_cast<int>(std::clamp(std::ceil(kSampleSeconds / once_s), 1.0, most));
    measure(size, 1, 1);
    size.series.isolated_s.clear();  // warm-up
    size.series.block_s.clear();
    size.series.gap_s.clear();
  }

  // One turn of a size, half of `seconds` for each curve, at least one sample of each.
  void visit(SizeState& size, double seconds) {
    const bool queues = size.queue > 1;
    const auto samples = [](double budget_s, double cost_s) {
      return static_cast<int>(std::clamp<double>(budget_s / std::max(cost_s, 1e-6), 1, kMostSamplesPerVisit));
    };
    measure(size, samples(queues ? seconds / 2 : seconds, size.isolated_cost_s), samples(seconds / 2, size.queued_cost_s));
  }

  void measure(SizeState& size, int isolated, int queued) {
    if (sweep_) empty_caches(size);
    barrier(group_);
    if (queue_length(size.series.bytes) > 1) {
      time_isolated(size);  // brings the buffer, unless caches are to be cold, and the transport's memory back into the caches
    }
    if (size.queue == 1) queued = 0;
    std::vector<double> ours;
    const auto started = Clock::now();
    for (int i = 0; i < isolated; ++i) ours.push_back(time_isolated(size));
    const double isolated_s = seconds_since(started);
    for (int i = 0; i < queued; ++i) ours.push_back(time_queued(size));
    const double queued_s = seconds_since(started) - isolated_s;
    ours.insert(ours.end(), {isolated_s / isolated, queued_s / std::max(queued, 1)});
    const std::vector<double> slowest = max_over_ranks(group_, ours);
    size.series.isolated_s.insert(size.series.isolated_s.end(), slowest.begin(), slowest.begin() + isolated);
    size.series.block_s.push_back(median(std::span(slowest).first(static_cast<size_t>(isolated))));
    size.series.gap_s.insert(size.series.gap_s.end(), slowest.begin() + isolated, slowest.end() - 2);
    size.isolated_cost_s = slowest[slowest.size() - 2];
    size.queued_cost_s = slowest.back();
  }

  const ProcessGroup& group_;
  Clock::time_point started_;
  double deadline_s_ = 0;
  double check_cost_s_ = 0;
  std::unique_ptr<CacheSweep> sweep_;
  std::vector<SizeState> sizes_;
};

constexpr size_t kCalls = 4;
constexpr int64_t kSmallestBytes = 16 * kKiB, kLargestBytes = 16 * kMiB;  // of buckets, about

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
    const at::Tensor owner = at::arange(first, first + piece.numel(), at::kLong).remainder(world_size);
    piece.copy_(sums * (owner == rank));
  });
}

int64_t count_wrong(const at::Tensor& buffer, int64_t first) {
  int64_t wrong = 0;
  for_known_sums(buffer, first, [&](const at::Tensor& piece, int64_t /*first*/, const at::Tensor& sums) {
    wrong += at::ne(piece.cpu().to(at::kFloat), sums).sum().item<int64_t>();
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
  return AllReduceBench(group, options).run(options.seed, options.on_progress);
}

std::vector<int64_t> sliced_sizes(std::vector<int64_t> sizes, int64_t ranks, at::ScalarType dtype) {
  const int64_t step = ranks * std::max(kFloatBytes, static_cast<int64_t>(at::elementSize(dtype)));
  for (int64_t& bytes : sizes) bytes = (bytes + step - 1) / step * step;
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

AllReduceTable allreduce_table(const std::vector<AllReduceSeries>& series, int64_t world_size) {
  AllReduceTable table;
  for (const AllReduceSeries& size : series) {
    AllReduceRow row = row_of_samples(size.bytes, world_size, size.isolated_s, size.gap_s);
    row.calls_per_sample = size.calls_per_sample;
    row.wrong = size.wrong;
    table.push_back(row);
  }
  return table;
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

std::vector<CollectiveRow> collective_rows(const std::vector<AllReduceSeries>& series, int64_t world_size) {
  constexpr std::array<const char*, kCollectives.size()> kNames = {"all_reduce", "reduce_scatter", "all_gather"};
  std::vector<CollectiveRow> rows;
  const AllReduceSeries* all_reduce = nullptr;
  for (const AllReduceSeries& one : series) {
    rows.push_back({.collective = kNames[static_cast<size_t>(one.collective)],
                    .bytes = one.bytes,
                    .world_size = world_size,
                    .seconds = median(one.isolated_s),
                    .gap_s = one.gap_s.empty() ? std::nullopt : std::optional(median(one.gap_s)),
                    .ci_s = series_interval(one.isolated_s),
                    .samples = std::ssize(one.isolated_s),
                    .calls_per_sample = one.calls_per_sample,
                    .wrong = one.wrong});
    if (one.collective == Collective::kAllReduce) {
      all_reduce = &one;
      continue;
    }
    const PairedRatio ratio = paired_ratio(one.block_s, all_reduce->block_s);
    rows.back().ratio_to_allreduce = ratio.ratio;
    rows.back().ratio_to_allreduce_ci = ratio.interval;
  }
  return rows;
}

}  // namespace firkin
