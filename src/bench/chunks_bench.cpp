#include "bench/chunks_bench.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/allreduce_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"
#include "workload/workload.h"

namespace firkin {
namespace {

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
  // Rounds over all sizes in random order; what no longer fits into the time is left out, and none fits in the end.
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(options.seed);
  for (bool any_fits = true; any_fits;) {
    any_fits = false;
    std::ranges::shuffle(order, random);
    for (const size_t index : order) {
      ChunksPoint& point = points[index];
      // The same on every rank.
      const auto seconds_left = [&] { return of_rank_0(group, options.seconds - seconds_since(started)); };
      if (!point.total_s.empty() && median(point.total_s) > seconds_left()) continue;
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
