#include "bucket_launcher.h"

#include <fmt/format.h>

#include "firkin/base/units.h"

namespace firkin {

BucketLauncher::BucketLauncher(ProcessGroup group, GradientHook hook, std::unique_ptr<GradientBuckets> buckets,
                               std::vector<std::string> names)
    : group_(std::move(group)), hook_(std::move(hook)), buckets_(std::move(buckets)), names_(std::move(names)) {
  for (const Bucket& bucket : buckets_->plan().buckets) flights_.emplace_back(bucket.count);
  launched_ = flights_.size();
  for (size_t i = 0; i < flights_.size(); ++i) {
    const int64_t bucket = bucket_at(i);
    const at::Tensor& wire = buckets_->wire(bucket);
    stats_.push_back({.tensors = buckets_->plan().buckets[static_cast<size_t>(bucket)].count,
                      .bytes = buckets_->gradient_bytes(bucket),
                      .bytes_on_wire = hook_.bytes_on_wire ? hook_.bytes_on_wire(wire) : static_cast<int64_t>(wire.nbytes())});
  }
}

void BucketLauncher::begin(int64_t step) {
  launched_ = 0;
  for (BucketFlight& bucket : flights_) bucket.begin(step);
  started_at_ = BucketFlight::Clock::now();
}

int64_t BucketLauncher::bucket_at(size_t launch_index) const {
  const std::vector<int64_t>& order = buckets_->plan().launch_order;
  return order.empty() ? static_cast<int64_t>(launch_index) : order[launch_index];
}

void BucketLauncher::tensor_placed(int64_t position) {
  flight(buckets_->bucket_of(position)).tensor_placed();
  while (!all_launched() && flight(next_bucket()).is_full()) launch_next();
}

void BucketLauncher::launch_next() {
  const int64_t bucket = next_bucket();
  flight(bucket).launch(group_, hook_, buckets_->wire(bucket));
  ++launched_;
}

std::string BucketLauncher::describe(int64_t bucket) const {
  const Bucket& tensors = buckets_->plan().buckets[static_cast<size_t>(bucket)];
  const std::string& first = names_[static_cast<size_t>(tensors.first)];
  const std::string more = tensors.count > 1 ? fmt::format(" and {} more", tensors.count - 1) : "";
  return fmt::format("bucket {} ({}{}, {})", bucket, first, more, format_bytes(buckets_->gradient_bytes(bucket)));
}

std::string BucketLauncher::first_pending() const {
  for (size_t i = 0; i < launched_; ++i) {
    if (flight(bucket_at(i)).is_pending()) return describe(bucket_at(i));
  }
  return all_launched() ? "" : describe(next_bucket());
}

void BucketLauncher::wait_for_all(c10::function_ref<std::string()> what) {
  for (size_t i = 0; i < launched_; ++i) flight(bucket_at(i)).wait(group_, what);
}

void BucketLauncher::consume() {
  const auto seconds = [this](auto time) { return std::chrono::duration<double>(time - started_at_).count(); };
  for (size_t i = 0; i < flights_.size(); ++i) {
    const int64_t bucket = bucket_at(i);
    buckets_->unpack(bucket);
    flight(bucket).consume();
    stats_[i].launch_s = seconds(flight(bucket).launched_at());
    stats_[i].end_s = seconds(flight(bucket).ended_at());
  }
}

}  // namespace firkin
