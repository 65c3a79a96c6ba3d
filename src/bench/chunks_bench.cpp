#include "bench/chunks_bench.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "base/stopwatch.h"
#include "bench/allreduce_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"
#include "workload/workload.h"

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

// All chunks, in order, at most kMostInFlight at a time. Seconds on this rank.
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

class ChunksBench {
 public:
  ChunksBench(const ProcessGroup& group, const ChunksBenchOptions& options)
      : group_(group),
        options_(options),
        random_(options.seed),
        data_(at::zeros({options.elements}, at::TensorOptions(at::kFloat).device(group.device))) {
    for (const int64_t bytes : options.chunk_bytes) {
      points_.push_back({.chunk_bytes = bytes,
                         .calls = chunk_count(options.elements, bytes),
                         .full_chunks = static_cast<double>(options.elements * kFloatBytes) / static_cast<double>(bytes),
                         .total_s = {}});
    }
  }

  std::vector<ChunksPoint> run() {
    for (ChunksPoint& point : points_) check(point);
    while (measure_round()) {
    }
    for (ChunksPoint& point : points_) {
      point.gap_s = median(point.total_s) / std::max(point.full_chunks, 1.0);
    }
    return std::move(points_);
  }

 private:
  // The same on every rank.
  double seconds_left() const { return of_rank_0(group_, options_.seconds - seconds_since(started_)); }

  std::vector<at::Tensor> chunks_of(const ChunksPoint& point) const { return data_.split(point.chunk_bytes / kFloatBytes); }

  // Also the warm-up. Leaves zeros, which stay finite when they are summed again and again.
  void check(ChunksPoint& point) {
    fill_with_known_values(data_, group_.rank, group_.size);
    time_chunks(group_, chunks_of(point));
    point.wrong = std::llround(sum_over_ranks(group_, static_cast<double>(count_wrong(data_))));
    data_.zero_();
  }

  // Each size once, in random order; what was measured before and no longer fits into the time is left out. Whether any fitted.
  bool measure_round() {
    std::vector<size_t> order(points_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random_);
    bool any = false;
    for (const size_t index : order) {
      ChunksPoint& point = points_[index];
      if (!point.total_s.empty() && median(point.total_s) > seconds_left()) continue;
      any = true;
      point.total_s.push_back(max_over_ranks(group_, {time_chunks(group_, chunks_of(point))})[0]);
      if (options_.on_progress) options_.on_progress(format_bytes(point.chunk_bytes), seconds_since(started_));
    }
    return any;
  }

  const ProcessGroup& group_;
  const ChunksBenchOptions& options_;
  Clock::time_point started_ = Clock::now();
  std::mt19937_64 random_;
  at::Tensor data_;
  std::vector<ChunksPoint> points_;
};

}  // namespace

int64_t chunk_count(int64_t elements, int64_t chunk_bytes) {
  if (elements < 1) throw InputError(fmt::format("{} elements in chunks: expected at least 1", elements));
  if (chunk_bytes < kFloatBytes || chunk_bytes % kFloatBytes != 0) {
    throw InputError(fmt::format("chunks of {} bytes: expected a positive multiple of {}", chunk_bytes, kFloatBytes));
  }
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
  if (options.chunk_bytes.empty() || !(options.seconds > 0)) throw InputError("chunk benchmark: expected sizes, and seconds above 0");
  for (const int64_t bytes : options.chunk_bytes) chunk_count(options.elements, bytes);
  return ChunksBench(group, options).run();
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

int64_t set_gaps(AllReduceTable& table, int64_t world_size, const std::vector<ChunksPoint>& points) {
  if (std::ranges::none_of(table, [&](const AllReduceRow& row) { return row.world_size == world_size; })) return 0;
  const CostCurve isolated = comm_costs(table, world_size).isolated;
  std::vector<CostPoint> gaps;
  for (const ChunksPoint& point : points) {
    if (point.full_chunks < 2) continue;
    const double alone_s = isolated(static_cast<double>(point.chunk_bytes));
    gaps.push_back({point.chunk_bytes, queued_gap_s(point.gap_s * point.full_chunks, alone_s, point.full_chunks)});
  }
  if (gaps.empty()) return 0;
  const CostCurve curve(std::move(gaps));
  int64_t set = 0;
  for (AllReduceRow& row : table) {
    if (row.world_size != world_size) continue;
    if (row.bytes < curve.points().front().bytes || row.bytes > curve.points().back().bytes) continue;
    row.gap_s = curve(static_cast<double>(row.bytes));
    ++set;
  }
  return set;
}

}  // namespace firkin
