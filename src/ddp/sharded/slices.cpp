#include "slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <numeric>

#include "ddp/flight.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Note [Pieces of a bucket]
// If both directions of a connection are busy, Gloo's large calls (PyTorch 2.13) leave a slow link idle for a part of
// the time, and small calls cost host time on a fast link. So a bucket on the CPU travels in pieces of about this size,
// all in flight together. A piece is the same run of elements of every rank's slice. A
// bucket travels whole over a modelled link, which is never idle, and if slices are unequally long.
constexpr int64_t kPieceBytes = 4 * kMiB;

// The runs of a slice's elements by which pieces are made. See Note [Pieces of a bucket].
std::vector<SliceRange> runs_of(const ProcessGroup& group, const at::Tensor& bucket, const SliceLengths& lengths, int64_t slice) {
  const int64_t pieces = static_cast<int64_t>(bucket.nbytes()) / kPieceBytes;
  if (pieces <= 1 || !group.link.empty() || !lengths.empty() || !bucket.is_cpu()) return {{0, slice}};
  const int64_t most = (slice + pieces - 1) / pieces;
  std::vector<SliceRange> runs;
  for (int64_t first = 0; first < slice; first += most) runs.push_back({first, std::min(most, slice - first)});
  return runs;
}

// By rank: a run of every slice of a bucket; and the same elements in memory that holds one piece after another.
at::Tensor in_slices(const ProcessGroup& group, const at::Tensor& bucket, const SliceRange& run) {
  return bucket.view({group.size, -1}).narrow(1, run.begin, run.count);
}

at::Tensor in_pieces(const ProcessGroup& group, const at::Tensor& pieces, const SliceRange& run) {
  return pieces.narrow(0, group.size * run.begin, group.size * run.count).view({group.size, run.count});
}

void sum_by_rank(const at::Tensor& sum, const at::Tensor& by_rank) {
  at::Tensor out = sum;
  if (by_rank.size(0) == 1) {
    out.copy_(by_rank[0]);
    return;
  }
  at::add_out(out, by_rank[0], by_rank[1]);
  for (int64_t rank = 2; rank < by_rank.size(0); ++rank) out.add_(by_rank[rank]);
}

}  // namespace

SliceRange SlicedBucket::own_range(const ProcessGroup& group, int64_t elements) const {
  if (lengths_.empty()) return {group.rank * (elements / group.size), elements / group.size};
  const auto own = lengths_.begin() + group.rank;
  return {std::accumulate(lengths_.begin(), own, int64_t{0}), *own};
}

at::Tensor SlicedBucket::own(const ProcessGroup& group, const at::Tensor& bucket) const {
  const SliceRange range = own_range(group, bucket.numel());
  return bucket.narrow(0, range.begin, range.count);
}

Work SlicedBucket::start(const ProcessGroup& group, const at::Tensor& bucket) {
  if (group.is_alone() || bucket.numel() == 0) return nullptr;
  const at::NoGradGuard no_grad;
  // A rank that has more than two shares of the bucket receives less in an all-reduce (twice the bucket's bytes), which
  // also needs no memory.
  const bool is_lopsided = !lengths_.empty() && std::ranges::max(lengths_) * group.size > 2 * bucket.numel();
  if (is_lopsided) return start_all_reduce(group, bucket);
  // Not with Gloo, whose reduce-scatter in PyTorch 2.13 is an all-reduce underneath.
  if (lengths_.empty() && !carries_by_gloo(group, bucket.device().type())) {
    return start_reduce_scatter(group, own(group, bucket), bucket);
  }
  const int64_t slice = own_range(group, bucket.numel()).count;
  received_ = at::empty({group.size * slice}, bucket.options());
  const std::vector<SliceRange> runs = runs_of(group, bucket, lengths_, slice);
  if (runs.size() == 1) return start_all_to_all(group, received_, bucket, SliceLengths(lengths_.size(), slice), lengths_);
  for (const SliceRange& run : runs) in_pieces(group, received_, run).copy_(in_slices(group, bucket, run));
  for (const SliceRange& run : runs) {
    pieces_.push_back(start_all_to_all(group, in_pieces(group, bucket, run).view(-1), in_pieces(group, received_, run).view(-1)));
  }
  const Work last = pieces_.back();
  pieces_.pop_back();
  return last;
}

void SlicedBucket::wait_for_pieces(const ProcessGroup& group) {
  for (const Work& piece : std::exchange(pieces_, {})) wait(group, piece, "a piece of a bucket");
}

void SlicedBucket::finish(const ProcessGroup& group, const at::Tensor& bucket) {
  wait_for_pieces(group);
  const at::Tensor received = std::exchange(received_, {});
  if (!received.defined()) return;
  const at::NoGradGuard no_grad;
  keep_for_current_stream(received);
  at::Tensor sum = own(group, bucket);
  const std::vector<SliceRange> runs = runs_of(group, bucket, lengths_, sum.numel());
  if (runs.size() == 1) return sum_by_rank(sum, received.view({group.size, sum.numel()}));
  const at::Tensor whole = received.narrow(0, 0, sum.numel());
  for (const SliceRange& run : runs) sum_by_rank(whole.narrow(0, run.begin, run.count), in_pieces(group, bucket, run));
  sum.copy_(whole);
}

void SlicedBucket::settle(const ProcessGroup& group) {
  wait_for_pieces(group);
  if (received_.defined()) keep_for_current_stream(received_);
  received_.reset();
}

void SlicedBucket::gather(const ProcessGroup& group, const at::Tensor& bucket) {
  // See Note [Late collectives in a profile] in ddp/flight.h.
  const at::RecordFunctionGuard recorded(at::isRecordFunctionEnabled() && late_collectives_are_recorded);
  if (!lengths_.empty()) {  // PyTorch 2.13's Gloo gathers only slices of equal length
    for (int64_t begin = 0, rank = 0; rank < group.size; begin += lengths_[static_cast<size_t>(rank++)]) {
      const at::Tensor slice = bucket.narrow(0, begin, lengths_[static_cast<size_t>(rank)]);
      if (slice.numel() > 0) gathers_.push_back(start_broadcast(group, slice, static_cast<int>(rank)));
    }
    return;
  }
  const at::Tensor slice = own(group, bucket);
  const std::vector<SliceRange> runs = runs_of(group, bucket, lengths_, slice.numel());
  if (runs.size() == 1) {
    gathers_.push_back(start_all_gather(group, bucket, slice));
    return;
  }
  for (const SliceRange& run : runs) {
    gathers_.push_back(start_all_gather_rows(group, in_slices(group, bucket, run), slice.narrow(0, run.begin, run.count)));
  }
}

void SlicedBucket::wait_for_gather(const ProcessGroup& group, c10::function_ref<std::string()> what) {
  for (const Work& call : std::exchange(gathers_, {})) firkin::wait(group, call, what);
}

}  // namespace firkin
