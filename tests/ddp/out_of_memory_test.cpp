// A rank that has no memory for its buckets: every rank hears of it, and nobody waits for a timeout.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <latch>
#include <limits>

#include "known_gradients.h"

namespace firkin {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

thread_local size_t largest_allocation = std::numeric_limits<size_t>::max();

// LibTorch's own allocator for the CPU, except that it refuses a thread what is larger than that thread may have.
class ScarceAllocator : public c10::Allocator {
 public:
  static void install() {
    static ScarceAllocator* const installed = [] {
      auto* const allocator = new ScarceAllocator(c10::GetAllocator(c10::kCPU));  // lives as long as tensors may
      c10::SetAllocator(c10::kCPU, allocator, /*priority=*/1);
      return allocator;
    }();
    (void)installed;
  }
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= largest_allocation, "no memory for ", bytes, " bytes, on purpose");
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  explicit ScarceAllocator(c10::Allocator* real) : real_(real) {}
  c10::Allocator* real_;
};

// This thread gets no more than this at once while it lives. bytes 0: no limit.
class Scarcity {
 public:
  explicit Scarcity(size_t bytes) {
    ScarceAllocator::install();
    if (bytes > 0) largest_allocation = bytes;
  }
  ~Scarcity() { largest_allocation = std::numeric_limits<size_t>::max(); }
  Scarcity(const Scarcity&) = delete;
  Scarcity& operator=(const Scarcity&) = delete;
};

constexpr size_t kScarce = 512 << 10;  // enough for every tensor by itself, too little for a bucket of all
const std::vector<int64_t> kTensors(20, 16 << 10);

// Rank 1 is short of memory in `body`. Either that does not matter, or every rank has an error; within seconds, while rank 1 still lives.
void expect_that_all_ranks_hear(const std::function<void(const ProcessGroup&, size_t scarce)>& body) {
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    ScarceAllocator::install();
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    std::latch all_have_heard(ranks);
    const auto started = std::chrono::steady_clock::now();
    run_ranks(ranks, [&](const ProcessGroup& group) {
      try {
        body(group, group.rank == 1 ? kScarce : 0);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(group.rank)] = error.what();
      }
      all_have_heard.arrive_and_wait();
    });
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));  // timeouts are 60 s
    if (errors[1].empty()) {
      EXPECT_THAT(errors, Each(IsEmpty()));
      continue;
    }
    EXPECT_THAT(errors[1], HasSubstr("no memory for"));
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 1) continue;
      EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("rank 1")) << "rank " << rank;
    }
  }
}

TEST(OutOfMemory, AtConstructionOnOneRankIsAnErrorOnAll) {
  expect_that_all_ranks_hear([](const ProcessGroup& group, size_t scarce) {
    Parameters net(kTensors);
    std::optional<DataParallel> ddp;
    {
      const Scarcity scarcity(scarce);
      ddp.emplace(net, group);
    }
    net.loss(rank_value(group)).backward();
  });
}

TEST(OutOfMemory, WhenBucketsAreMadeAnewOnOneRankIsAnErrorOnAll) {
  expect_that_all_ranks_hear([](const ProcessGroup& group, size_t scarce) {
    Parameters net(kTensors);
    net.all[0].set_requires_grad(false);
    DataParallel ddp(net, group);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) net.all[0].set_requires_grad(true);
      const Scarcity scarcity(step >= 2 ? scarce : 0);
      net.zero_grad();
      net.loss(rank_value(group)).backward();
      EXPECT_TRUE(at::equal(net.all[0].grad().defined() ? net.all[0].grad() : net.all[1].grad(), net.all[1].grad()));
    }
  });
}

}  // namespace
}  // namespace firkin
