#include "link_queue.h"

#include <sys/prctl.h>

#include <algorithm>

namespace firkin {
namespace {

LinkQueue::Clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<LinkQueue::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

LinkQueue::LinkQueue() : timer_([this] { run(); }) {}

LinkQueue::~LinkQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  timer_.join();
}

void LinkQueue::add(const std::shared_ptr<LinkTransfer>& transfer) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(transfer);
}

void LinkQueue::join(LinkTransfer& transfer) {
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    transfer.joined = now;
  }
  changed_.notify_one();
}

void LinkQueue::move(LinkTransfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    transfer.moved = true;
  }
  changed_.notify_one();
}

void LinkQueue::fail(const std::shared_ptr<LinkTransfer>& transfer, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    const auto place = std::ranges::find(queue_, transfer);
    if (place == queue_.end()) return;  // it has failed already
    queue_.erase(place);
  }
  changed_.notify_one();
  transfer->complete(error);
}

LinkQueue::Clock::time_point LinkQueue::end_of(const LinkTransfer& transfer) const {
  const auto alone = *transfer.joined + ticks(transfer.time.alone_s);
  if (last_end_ == Clock::time_point::min()) return alone;
  return std::max(alone, last_end_ + ticks(transfer.time.gap_s));
}

void LinkQueue::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds: the kernel's own 50 us are a small collective's time
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty() && closing_) return;
    if (queue_.empty() || !queue_.front()->joined || !queue_.front()->moved) {
      changed_.wait(lock);
      continue;
    }
    const auto end = end_of(*queue_.front());
    if (Clock::now() < end) {
      changed_.wait_until(lock, end);  // the queue may be another when it returns: a transfer has failed
      continue;
    }
    const std::shared_ptr<LinkTransfer> transfer = std::move(queue_.front());
    queue_.pop_front();
    last_end_ = end;
    lock.unlock();
    transfer->complete(nullptr);
    lock.lock();
  }
}

}  // namespace firkin
