// The rounds of start_or(), on a thread that waits for their messages.
#include "group_state.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <deque>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

struct MessageHead {
  uint64_t call = 0;
  uint64_t bytes = 0;  // in all pieces of the tensor together
};

// PyTorch 2.13's Gloo ends the process if a message is longer than the tensor that receives it. So every message has
// room for this many bytes (24 for each of 2,000 ranks, and a bit for each of 100,000 parameters). Longer ones go in
// pieces, each as a call of its own.
constexpr int64_t kLongestMessage = 64 * kKiB;
constexpr size_t kLongestPiece = kLongestMessage - sizeof(MessageHead);

// Tags of Gloo's messages: numbers from 0 to 2^31 - 1, the same on both sides.
constexpr int kTagsOfCall = 32;
constexpr uint64_t kCallsBeforeTagsRepeat = uint64_t{1} << 25;

int rounds_of(int64_t ranks) {
  return std::bit_width(static_cast<uint64_t>(ranks - 1));
}

}  // namespace

class OrRounds::Rounds {
 public:
  struct Call {
    at::Tensor bytes;
    size_t begin = 0, count = 0;  // the piece of `bytes` that this call combines
    std::chrono::milliseconds timeout{0};
    c10::intrusive_ptr<OwnWork> work;  // of the last piece; null for others
  };

  Rounds(c10::intrusive_ptr<c10d::Backend> backend, std::optional<ModelledLink> link)
      : backend_(std::move(backend)), link_(std::move(link)), rank_(backend_->getRank()), size_(backend_->getSize()) {
    for (int round = 0; round < rounds_of(size_); ++round) {
      sent_.push_back(at::empty({kLongestMessage}, at::kByte));
      for (Expected& call : expected_) call.messages.push_back(at::empty({kLongestMessage}, at::kByte));
    }
  }

  bool is_alone() const { return size_ == 1 && !link_; }

  void add(Call call) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
    }
    changed_.notify_one();
  }

  void close() {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_one();
    if (pending_) pending_->abort();  // also if the thread is only about to wait for it
  }

  void run() noexcept {
    const at::DisableRecordFunctionGuard unrecorded;  // traces show the agreement, without its messages
    for (;;) {
      Call call;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_closing_ || !calls_.empty(); });
        if (calls_.empty()) return;
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      run_call(call);
      if (call.work) call.work->complete(error_);
      ++number_;
    }
  }

 private:
  // The messages that one call receives, by round.
  struct Expected {
    std::vector<at::Tensor> messages;
    std::vector<Work> works;
    std::exception_ptr error;
  };

  // After an error, all later calls fail with the same error.
  void run_call(const Call& call) noexcept {
    if (error_) return;
    try {
      if (number_ == 0) expect(0);
      if (expected_of(number_).error) std::rethrow_exception(expected_of(number_).error);
      for (int round = 0; round < rounds_of(size_); ++round) run_round(call, round);
      if (size_ == 1) travel(call);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  Expected& expected_of(uint64_t number) { return expected_[number % expected_.size()]; }

  // Posts the receives of a call. Gloo sends a message at once if its receive is posted, and asks first if not. So a
  // call's receives are posted during the call before. They fail if the sender has gone because it needs nothing more;
  // that error matters only if the later call comes.
  void expect(uint64_t number) noexcept {
    Expected& call = expected_of(number);
    try {
      call.works.clear();
      for (int round = 0; round < rounds_of(size_); ++round) {
        call.works.push_back(receive(call.messages[static_cast<size_t>(round)], number, round));
      }
    } catch (...) {
      call.error = std::current_exception();
    }
  }

  void run_round(const Call& call, int round) {
    const size_t bytes = call.count;
    auto* const ours = static_cast<uint8_t*>(call.bytes.mutable_data_ptr()) + call.begin;
    const MessageHead head{number_, call.bytes.nbytes()};
    const at::Tensor message = sent_[static_cast<size_t>(round)].narrow(0, 0, static_cast<int64_t>(sizeof head + bytes));
    auto* const out = static_cast<uint8_t*>(message.mutable_data_ptr());
    std::memcpy(out, &head, sizeof head);
    std::memcpy(out + sizeof head, ours, bytes);
    const Work sending = send(message, round);
    if (round == 0) expect(number_ + 1);
    Expected& expected = expected_of(number_);
    wait_for(expected.works[static_cast<size_t>(round)], call.timeout);
    const auto* const in = static_cast<const uint8_t*>(expected.messages[static_cast<size_t>(round)].const_data_ptr());
    MessageHead theirs;
    std::memcpy(&theirs, in, sizeof theirs);
    if (theirs.call != head.call || theirs.bytes != head.bytes) {
      throw RuntimeError(fmt::format("rank {} sends {} bytes in its call {} of start_or(), rank {} has {} bytes in call {}",
                                     source_of(round), theirs.bytes, theirs.call, rank_, head.bytes, head.call));
    }
    wait_for(sending, call.timeout);
    travel(call);
    for (size_t i = 0; i < bytes; ++i) ours[i] |= in[sizeof head + i];
  }

  // Over a modelled link: waits for as long as one round takes there.
  void travel(const Call& call) {
    if (!link_) return;
    const auto bytes = static_cast<int64_t>(call.count + sizeof(MessageHead));
    const double seconds = agreement_time(*link_, bytes) / std::max(rounds_of(size_), 1);
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_closing_; })) throw_gone();
  }

  // Waits in one piece: see OrRounds. close() ends the wait.
  void wait_for(const Work& work, std::chrono::milliseconds timeout) {
    {
      const std::lock_guard lock(mutex_);
      if (is_closing_) throw_gone();
      pending_ = work;
    }
    const auto forget = c10::make_scope_exit([this] {
      const std::lock_guard lock(mutex_);
      pending_ = nullptr;
    });
    if (!work->wait(timeout)) throw_gone();
  }

  [[noreturn]] static void throw_gone() { throw RuntimeError("the group was given up during start_or()"); }

  int source_of(int round) const { return (rank_ + size_ - (1 << round)) % size_; }
  static int tag_of(uint64_t number, int round) { return static_cast<int>(number % kCallsBeforeTagsRepeat) * kTagsOfCall + round; }
  Work send(const at::Tensor& tensor, int round) {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->send(tensors, (rank_ + (1 << round)) % size_, tag_of(number_, round));
  }
  Work receive(const at::Tensor& tensor, uint64_t number, int round) {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->recv(tensors, source_of(round), tag_of(number, round));
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::optional<ModelledLink> link_;
  const int rank_;
  const int size_;

  // Used by the thread alone.
  uint64_t number_ = 0;  // the call's number
  std::exception_ptr error_;
  std::vector<at::Tensor> sent_;  // by round
  std::array<Expected, 2> expected_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  bool is_closing_ = false;
  Work pending_;  // what the thread waits for
};

OrRounds::OrRounds(c10::intrusive_ptr<c10d::Backend> backend, std::optional<ModelledLink> link)
    : rounds_(std::make_shared<Rounds>(std::move(backend), std::move(link))) {}

OrRounds::~OrRounds() {
  rounds_->close();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // a callback on this thread had the last handle of the group
  } else {
    thread_.join();
  }
}

void OrRounds::leave() {
  rounds_->close();
  if (thread_.joinable()) thread_.detach();
}

Work OrRounds::start(const at::Tensor& bytes, std::chrono::milliseconds timeout) {
  auto work = c10::make_intrusive<OwnWork>(0, c10d::OpType::ALLREDUCE, kAgreementCollective, std::vector<at::Tensor>{bytes});
  if (rounds_->is_alone()) {
    work->complete(nullptr);
    return work;
  }
  if (!thread_.joinable()) thread_ = std::thread([rounds = rounds_] { rounds->run(); });
  const size_t all = bytes.nbytes();
  size_t begin = 0;
  for (; all - begin > kLongestPiece; begin += kLongestPiece) rounds_->add({bytes, begin, kLongestPiece, timeout, nullptr});
  rounds_->add({bytes, begin, all - begin, timeout, work});
  return work;
}

Work start_or(const ProcessGroup& group, at::Tensor bytes) {
  throw_if_lost(group);
  if (bytes.scalar_type() != at::kByte || !bytes.is_cpu() || !bytes.is_contiguous()) {
    throw InputError("start_or(): expected contiguous bytes on the CPU");
  }
  return dynamic_cast<LosableGroup&>(*group.c10d).or_rounds().start(std::move(bytes), group.timeout.value_or(group.state->options.timeout));
}

}  // namespace firkin
