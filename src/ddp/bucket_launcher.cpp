#include "bucket_launcher.h"

#include <fmt/format.h>

#include "firkin/base/units.h"

namespace firkin {

BucketLauncher::BucketLauncher(ProcessGroup group, GradientHook hook, std::unique_ptr<GradientBuckets> buckets,
                               std::vector<std::string> names)
    : group_(std::move(group)), hook_(std::move(hook)), buckets_(std::move(buckets)), names_(std::move(names)) {
  for (const Bucket& bucket : buckets_->plan().buckets) flights_.emplace_back(bucket.count);
  launched_ = flights_.size();
  set_launch_order(buckets_->plan().launch_order);
}

void BucketLauncher::set_launch_order(std::vector<int64_t> order) {
  launch_order_ = std::move(order);
  launch_index_.assign(flights_.size(), 0);
  stats_.clear();
  for (size_t i = 0; i < flights_.size(); ++i) {
    const int64_t bucket = bucket_at(i);
    const at::Tensor& wire = buckets_->wire(bucket);
    launch_index_[static_cast<size_t>(bucket)] = i;
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
  return launch_order_.empty() ? static_cast<int64_t>(launch_index) : launch_order_[launch_index];
}

void BucketLauncher::tensor_placed(int64_t position) {
  for (int64_t bucket = buckets_->bucket_of(position); bucket <= buckets_->last_bucket_of(position); ++bucket) {
    flight(bucket).tensor_placed(buckets_->wire(bucket).device());
  }
  while (!all_launched() && flight(next_bucket()).is_full()) launch_next();
}

void BucketLauncher::launch_next() {
  const int64_t bucket = next_bucket();
  const at::Tensor& wire = buckets_->wire(bucket);
  flight(bucket).join_writers(wire.device());
  buckets_->scale_where_placed(bucket);
  flight(bucket).launch(group_, hook_, wire);
  ++launched_;
}

std::string BucketLauncher::describe(int64_t bucket) const {
  const Bucket& tensors = buckets_->plan().buckets[static_cast<size_t>(bucket)];
  const std::string& first = names_[static_cast<size_t>(tensors.first)];
  std::string more = tensors.count > 1 ? fmt::format(" and {} more", tensors.count - 1) : "";
  if (tensors.parts > 1) more = fmt::format(", part {} of {}", tensors.part + 1, tensors.parts);
  return fmt::format("bucket {} ({}{}, {})", bucket, first, more, format_bytes(buckets_->gradient_bytes(bucket)));
}

std::string BucketLauncher::first_pending() const {
  for (size_t i = 0; i < launched_; ++i) {
    if (flight(bucket_at(i)).is_pending()) return describe(bucket_at(i));
  }
  return all_launched() ? "" : describe(next_bucket());
}

void BucketLauncher::receive(int64_t bucket, c10::function_ref<std::string()> what) {
  flight(bucket).wait(group_, what);
  buckets_->unpack(bucket);
  flight(bucket).consume();
  const auto seconds = [this](auto time) { return std::chrono::duration<double>(time - started_at_).count(); };
  BucketStats& stats = stats_[launch_index_[static_cast<size_t>(bucket)]];
  stats.launch_s = seconds(flight(bucket).launched_at());
  stats.end_s = seconds(flight(bucket).ended_at());
}

std::vector<int64_t> BucketLauncher::not_received() const {
  std::vector<int64_t> result;
  for (size_t i = 0; i < launched_; ++i) {
    if (!is_received(bucket_at(i))) result.push_back(bucket_at(i));
  }
  return result;
}

}  // namespace firkin
