#include "link_queue.h"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace firkin {
namespace {

LinkQueue::Clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<LinkQueue::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

struct LinkQueue::Line {
  void run();
  Clock::time_point end_of(const LinkTransfer& transfer) const;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<LinkTransfer>> transfers;
  Clock::time_point last_end = Clock::time_point::min();  // of the transfer before, by the model
  bool closing = false;
};

LinkQueue::LinkQueue() : line_(std::make_shared<Line>()), timer_([line = line_] { line->run(); }) {}

LinkQueue::~LinkQueue() {
  {
    const std::lock_guard lock(line_->mutex);
    line_->closing = true;
  }
  line_->changed.notify_one();
  if (timer_.get_id() == std::this_thread::get_id()) {
    timer_.detach();  // it ends by itself; to wait for it here would be for ever
  } else {
    timer_.join();
  }
}

void LinkQueue::add(const std::shared_ptr<LinkTransfer>& transfer) {
  const std::lock_guard lock(line_->mutex);
  line_->transfers.push_back(transfer);
}

void LinkQueue::join(LinkTransfer& transfer) {
  const auto now = Clock::now();
  {
    const std::lock_guard lock(line_->mutex);
    transfer.joined = now;
  }
  line_->changed.notify_one();
}

void LinkQueue::move(LinkTransfer& transfer) {
  {
    const std::lock_guard lock(line_->mutex);
    transfer.moved = true;
  }
  line_->changed.notify_one();
}

void LinkQueue::fail(const std::shared_ptr<LinkTransfer>& transfer, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(line_->mutex);
    const auto place = std::ranges::find(line_->transfers, transfer);
    if (place == line_->transfers.end()) return;  // it has failed already
    line_->transfers.erase(place);
  }
  line_->changed.notify_one();
  transfer->complete(error);
}

LinkQueue::Clock::time_point LinkQueue::Line::end_of(const LinkTransfer& transfer) const {
  const auto alone = *transfer.joined + ticks(transfer.time.alone_s);
  if (last_end == Clock::time_point::min()) return alone;
  return std::max(alone, last_end + ticks(transfer.time.gap_s));
}

void LinkQueue::Line::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds: the kernel's own 50 us are a small collective's time
  std::unique_lock lock(mutex);
  for (;;) {
    if (transfers.empty() && closing) return;
    if (transfers.empty() || !transfers.front()->joined || !transfers.front()->moved) {
      changed.wait(lock);
      continue;
    }
    const auto end = end_of(*transfers.front());
    if (Clock::now() < end) {
      changed.wait_until(lock, end);  // the queue may be another when it returns: a transfer has failed
      continue;
    }
    std::shared_ptr<LinkTransfer> transfer = std::move(transfers.front());
    transfers.pop_front();
    last_end = end;
    lock.unlock();
    transfer->complete(nullptr);
    transfer = nullptr;  // and what it holds, without the lock
    lock.lock();
  }
}

}  // namespace firkin
