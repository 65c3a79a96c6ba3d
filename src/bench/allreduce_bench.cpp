#include "bench/allreduce_bench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "comm/across_ranks.h"
#include "comm/device_time.h"
#include "comm/timed_visit.h"
#include "ddp/sharded/slices.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// Calls body(piece of the buffer, index of its first element, its known sums), one piece of memory after another.
template <typename Body>
void for_known_sums(const at::Tensor& buffer, int64_t first_index, Body body) {
  constexpr int64_t kPeriod = 127;                 // a prime, so that chunks of a power of two never begin alike
  constexpr int64_t kPiece = kPeriod * (1 << 11);  // elements; what is computed of a piece stays below 10 MB
  const at::TensorOptions whole = at::TensorOptions(at::kLong).device(buffer.device());
  const at::Tensor period = at::arange(first_index, first_index + kPeriod, whole).remainder(kPeriod).to(at::kFloat) + 1;
  const at::Tensor sums = period.repeat({std::min(kPiece, buffer.numel()) / kPeriod + 1});
  for (int64_t first = 0; first < buffer.numel(); first += kPiece) {
    const int64_t count = std::min(kPiece, buffer.numel() - first);
    body(buffer.narrow(0, first, count), first, sums.narrow(0, 0, count));
  }
}

std::function<void()> start_reduce_scatter(const ProcessGroup& group, const at::Tensor& bucket) {
  const auto slices = std::make_shared<SlicedBucket>();
  return [&group, bucket, slices, reduction = slices->start(group, bucket)] {
    wait(group, reduction, "a reduce-scatter");
    slices->finish(group, bucket);
  };
}

std::function<void()> start_gather(const ProcessGroup& group, const at::Tensor& bucket) {
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
  StartCollective start;
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

// The number of wrong elements in the results of a whole queue, over all ranks; a queue also shows calls that disturb
// each other. Leaves zeros.
int64_t check_queue(const ProcessGroup& group, const Operation& operation, std::span<const at::Tensor> queue) {
  for (const at::Tensor& buffer : queue) operation.fill(group, buffer);
  time_queue(group, operation.start, queue);
  int64_t wrong = 0;
  for (const at::Tensor& buffer : queue) {
    wrong += operation.wrong(group, buffer);
    buffer.zero_();
  }
  return std::llround(sum_over_ranks(group, static_cast<double>(wrong)));
}

// Enough calls that the queue never runs dry, few enough that their handles do not fill the memory.
constexpr size_t kMostInFlight = 1024;

// Seconds on this rank for all chunks, in order, at most kMostInFlight at a time.
double time_chunks(const ProcessGroup& group, const std::vector<at::Tensor>& chunks) {
  std::vector<Work> flying(std::min(chunks.size(), kMostInFlight));
  barrier(group);
  const DeviceTime started = device_now(group.device);
  for (size_t i = 0; i < chunks.size(); ++i) {
    Work& place = flying[i % flying.size()];
    if (place) wait(group, place, "the all-reduce of a chunk");
    place = start_all_reduce(group, chunks[i]);
  }
  for (const Work& work : flying) wait(group, work, "the all-reduce of a chunk");
  return seconds_between(started, device_now(group.device));
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

std::vector<AllReduceSeries> measure_allreduce(const ProcessGroup& group, const AllReduceBenchOptions& options) {
  std::vector<TimedSize> sizes;
  for (const int64_t bytes : options.sizes) {
    for (const Collective collective : options.collectives) sizes.push_back({bytes, collective});
  }
  AllReduceScheduleOptions schedule_options{.seconds = options.seconds, .seed = options.seed};
  if (options.collectives.size() > 1) schedule_options.queue_bytes /= kBuffersOfACollective;
  AllReduceSchedule schedule(sizes, schedule_options);
  const at::TensorOptions elements = at::TensorOptions(options.dtype).device(group.device);
  const auto buffers = queue_buffers(schedule, sizes, static_cast<int64_t>(at::elementSize(options.dtype)), elements);
  while (schedule.next()) {
    const size_t size = schedule.next()->size;
    const int rounds = schedule.rounds();
    const Operation& operation = kOperations[static_cast<size_t>(sizes[size].collective)];
    run_visit(group, operation.start, buffers[size], schedule,
              [&](std::span<const at::Tensor> queue) { return check_queue(group, operation, queue); });
    if (options.on_progress && schedule.rounds() > rounds) options.on_progress(fmt::format("round {}", schedule.rounds()));
  }
  return schedule.series();
}

std::vector<int64_t> sliced_sizes(std::vector<int64_t> sizes, int64_t ranks, at::ScalarType dtype) {
  const int64_t step = ranks * std::max(kFloatBytes, static_cast<int64_t>(at::elementSize(dtype)));
  for (int64_t& bytes : sizes) bytes = (bytes + step - 1) / step * step;
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

int64_t chunk_count(int64_t elements, int64_t chunk_bytes) {
  const int64_t chunk_elements = chunk_bytes / kFloatBytes;
  const int64_t count = elements / chunk_elements + (elements % chunk_elements != 0 ? 1 : 0);
  if (count > kMostChunks) {
    throw InputError(fmt::format("{} elements in chunks of {} bytes are {} calls; expected at most {}: take larger chunks", elements,
                                 chunk_bytes, count, kMostChunks));
  }
  return count;
}

std::vector<int64_t> chunk_sizes(const std::vector<int64_t>& sizes, int64_t elements) {
  const int64_t all = elements * kFloatBytes;
  std::vector<int64_t> fitting;
  for (const int64_t bytes : sizes) fitting.push_back(std::min(bytes, all));
  fitting.erase(std::unique(fitting.begin(), fitting.end()), fitting.end());
  return fitting;
}

std::vector<ChunksPoint> measure_chunks(const ProcessGroup& group, const ChunksBenchOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const at::Tensor data = at::zeros({options.elements}, at::TensorOptions(at::kFloat).device(group.device));
  const auto chunks_of = [&](const ChunksPoint& point) { return data.split(point.chunk_bytes / kFloatBytes); };
  std::vector<ChunksPoint> points;
  for (const int64_t bytes : options.chunk_bytes) {
    ChunksPoint& point = points.emplace_back();
    point.chunk_bytes = bytes;
    point.calls = chunk_count(options.elements, bytes);
    fill_with_known_values(data, group.rank, group.size);
    time_chunks(group, chunks_of(point));  // also the warm-up
    point.wrong = std::llround(sum_over_ranks(group, static_cast<double>(count_wrong(data))));
    data.zero_();  // zeros stay finite when they are summed again and again
  }
  // Rounds over all sizes in random order, without those that no longer fit into the time, until none fits.
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  for (bool any_fits = true; any_fits;) {
    any_fits = false;
    std::ranges::shuffle(order, random);
    for (const size_t index : order) {
      ChunksPoint& point = points[index];
      // By rank 0's clock, so that all ranks decide alike.
      const auto remaining_s = [&] { return of_rank_0(group, options.seconds - seconds_since(started)); };
      if (!point.total_s.empty() && median(point.total_s) > remaining_s()) continue;
      any_fits = true;
      point.total_s.push_back(max_over_ranks(group, {time_chunks(group, chunks_of(point))})[0]);
      if (options.on_progress) options.on_progress(format_bytes(point.chunk_bytes), seconds_since(started));
    }
  }
  const auto all_bytes = static_cast<double>(options.elements * kFloatBytes);
  for (ChunksPoint& point : points) point.gap_s = median(point.total_s) * std::min(1.0, static_cast<double>(point.chunk_bytes) / all_bytes);
  return points;
}

std::vector<ChunksRow> chunk_rows(const std::vector<ChunksPoint>& points, int ranks) {
  std::vector<ChunksRow> rows;
  for (const ChunksPoint& point : points) {
    const Summary total = summarize(point.total_s);
    rows.push_back({.chunk_bytes = point.chunk_bytes,
                    .world_size = ranks,
                    .calls = point.calls,
                    .total_s = total.median,
                    .total_ci_s = series_interval(point.total_s),
                    .gap_s = point.gap_s,
                    .mean_s = total.mean,
                    .stdev_s = total.stdev,
                    .min_s = total.min,
                    .max_s = total.max,
                    .samples = static_cast<int64_t>(total.count),
                    .wrong = point.wrong});
  }
  return rows;
}

}  // namespace firkin
