#include "bucket_launcher.h"

#include <fmt/format.h>

namespace firkin {

void BucketLauncher::begin(std::shared_ptr<const GradientBuckets> buckets) {
  buckets_ = std::move(buckets);
  launched_ = 0;
  states_.assign(static_cast<size_t>(buckets_->bucket_count()), {});
  for (size_t b = 0; b < states_.size(); ++b) states_[b].missing = buckets_->plan().buckets[b].count;
  started_at_ = Clock::now();
}

int64_t BucketLauncher::bucket_at(size_t launch_index) const {
  const std::vector<int64_t>& order = buckets_->plan().launch_order;
  return order.empty() ? static_cast<int64_t>(launch_index) : order[launch_index];
}

int64_t BucketLauncher::next_bucket() const {
  return bucket_at(launched_);
}

void BucketLauncher::tensor_placed(int64_t position) {
  if (--state(buckets_->bucket_of(position)).missing > 0) return;
  while (!all_launched() && state(next_bucket()).missing == 0) launch_next();
}

void BucketLauncher::launch_next() {
  const int64_t bucket = next_bucket();
  BucketState& launched = state(bucket);
  launched.launched_at = Clock::now();
  launched.ended_at = std::make_shared<std::atomic<Clock::rep>>(0);
  launched.reduction = hook_.start(group_, buckets_->flat(bucket));
  ++launched_;
  if (launched.reduction.work == nullptr || !buckets_->flat(bucket).is_cpu()) return;
  launched.reduction.work->getFuture()->addCallback(
      [ended_at = launched.ended_at](c10::ivalue::Future& /*future*/) { *ended_at = Clock::now().time_since_epoch().count(); },
      /*uses_future=*/false);
}

void BucketLauncher::wait_for(int64_t bucket) {
  BucketState& launched = state(bucket);
  if (launched.reduction.finish) {
    launched.reduction.finish();
  } else if (launched.reduction.work != nullptr) {
    wait(launched.reduction.work, fmt::format("all-reduce of gradient bucket {}", bucket));
  }
  launched.reduction = {};
  Clock::rep unset = 0;  // the backend did not say when: now at the latest
  launched.ended_at->compare_exchange_strong(unset, Clock::now().time_since_epoch().count());
}

void BucketLauncher::wait_for_last() {
  wait_for(bucket_at(launched_ - 1));
}

void BucketLauncher::wait_for_all() {
  for (size_t i = 0; i < launched_; ++i) wait_for(bucket_at(i));
}

std::vector<BucketStats> BucketLauncher::end() {
  const auto seconds = [this](Clock::time_point time) { return std::chrono::duration<double>(time - started_at_).count(); };
  std::vector<BucketStats> result;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto bucket = static_cast<size_t>(bucket_at(i));
    const BucketState& launched = states_[bucket];
    const at::Tensor& flat = buckets_->flat(static_cast<int64_t>(bucket));
    result.push_back({.tensors = buckets_->plan().buckets[bucket].count,
                      .bytes = static_cast<int64_t>(flat.nbytes()),
                      .bytes_on_wire = hook_.bytes_on_wire(flat),
                      .launch_s = seconds(launched.launched_at),
                      .end_s = seconds(Clock::time_point(Clock::duration(*launched.ended_at)))});
  }
  states_.clear();
  launched_ = 0;
  buckets_.reset();
  return result;
}

}  // namespace firkin
