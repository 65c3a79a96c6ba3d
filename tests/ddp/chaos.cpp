#include "chaos.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "chaos_meeting.h"
#include "chaos_plan.h"
#include "chaos_rank.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace firkin {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);  // beyond the collectives' timeout

// What the threads of a sequence share; a thread that hangs keeps it alive.
struct Sequence {
  Sequence(uint64_t seed, std::chrono::milliseconds timeout_of_collectives, MakeChaosGroup make)
      : plan(draw_chaos_plan(seed)),
        timeout(timeout_of_collectives),
        make_group(std::move(make)),
        meeting(plan.ranks, timeout + kPatience) {}

  ChaosPlan plan;
  std::chrono::milliseconds timeout;
  MakeChaosGroup make_group;
  ChaosMeeting meeting;
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
};

void run_rank(Sequence& sequence, int rank) {
  try {
    const ProcessGroup group = sequence.make_group(sequence.store, rank, sequence.plan.ranks, sequence.timeout);
    const c10::DeviceGuard guard(group.device);
    ChaosRank(sequence.plan, group, sequence.meeting).run();
  } catch (const ChaosStop&) {
    // Another rank, or the comparison, has said why.
  } catch (const std::exception& error) {
    sequence.meeting.fail(fmt::format("rank {}, unexpectedly: {}", rank, error.what()));
  } catch (...) {
    sequence.meeting.fail(fmt::format("rank {}, unexpectedly: no std::exception", rank));
  }
  sequence.meeting.leave();
}

}  // namespace

ProcessGroup chaos_group_on_cpu(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
  return make_process_group(store, rank, size, {.device = c10::Device(c10::kCPU), .timeout = timeout});
}

uint64_t first_chaos_seed() {
  const char* text = std::getenv("FIRKIN_TEST_SEED");
  const uint64_t seed = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  fmt::print("chaos from seed {}\n", seed);
  return seed;
}

std::optional<std::string> run_chaos_sequence(uint64_t seed, std::chrono::milliseconds timeout, const MakeChaosGroup& make_group,
                                              bool on_devices) {
  const auto sequence = std::make_shared<Sequence>(seed, timeout, make_group);
  ChaosPlan& plan = sequence->plan;
  if (on_devices) plan.straying_rank.reset();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < sequence->plan.ranks; ++rank) {
    threads.emplace_back([sequence, rank] { run_rank(*sequence, rank); });
  }
  const bool all_left = sequence->meeting.wait_until_all_left();
  for (std::thread& thread : threads) {
    if (all_left) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  const std::string failures = sequence->meeting.failures();
  if (failures.empty()) return std::nullopt;
  return fmt::format("seed {}: {}\n    {}", seed, describe(sequence->plan), failures);
}

}  // namespace firkin
