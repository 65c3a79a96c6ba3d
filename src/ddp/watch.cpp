#include "firkin/ddp/watch.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <utility>

#include "backward_watch.h"
#include "comm/group_store.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"

namespace firkin {
namespace {

constexpr int64_t kCollectEvery = 10;  // how many steps from one reading of the store to the next
constexpr int kMostAtOnce = 8;         // how many ranks' steps are read at once

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

struct Watch::Parts {
  DataParallel& ddp;
  ProcessGroup group;
  WatchOptions options;
  std::string key = {};
  int64_t first_step = 0;                               // the first step of the first window
  int64_t steps = 0;                                    // from the last stats()
  std::chrono::steady_clock::time_point last_end = {};  // the end of the previous step
  int64_t window = 0;
  RankSteps mine = {};                    // this rank's steps of the current window
  std::optional<int64_t> wanted = {};     // the window that rank 0 is collecting
  std::vector<RankSteps> collected = {};  // the steps of that window so far, by rank
  WatchSummary summary = {};

  // Each rank uses two keys in turn, so that the store does not grow.
  std::string place(int64_t rank, int64_t of_window) const { return fmt::format("{}/{}/{}", key, rank, of_window % 2); }

  void step_ended() {
    const DataParallelStats stats = ddp.stats();
    const auto before = std::exchange(last_end, stats.ended);
    if (std::exchange(steps, stats.steps) + 1 != stats.steps || stats.steps < first_step) return;
    if ((stats.steps - first_step) / options.every > window) {
      mine.bucket_bytes.clear();
      for (const BucketStats& bucket : stats.buckets) mine.bucket_bytes.push_back(bucket.bytes);
      group.store->set(place(group.rank, window), fmt::format("{} {}", window, rank_steps_text(mine)));
      mine.steps.clear();
      if (group.rank == 0) {
        wanted = window;
        collected.clear();
      }
      window = (stats.steps - first_step) / options.every;
    }
    const double gradients_s = seconds(stats.ended - stats.began);
    RankStep& step = mine.steps.emplace_back(
        RankStep{.step = stats.steps,
                 .phases_s = {seconds(stats.began - before) - stats.forward_wait_s, gradients_s - stats.exposed_wait_s},
                 .exposed_s = stats.exposed_wait_s + stats.forward_wait_s,
                 .gradients_s = gradients_s});
    for (const BucketStats& bucket : stats.buckets) step.sent_s.push_back(gradients_s - bucket.launch_s);
    if (wanted && stats.steps % kCollectEvery == 0) collect();
  }

  // Rank 0 collects what the others have put into the store, a few at a time, without waiting.
  void collect() {
    for (int i = 0; i < kMostAtOnce; ++i) {
      const std::string at = place(std::ssize(collected), *wanted);
      if (!group.store->check({at})) return;
      const std::string text = group.store->get_to_str(at);
      const size_t space = text.find(' ');
      if (text.substr(0, space) != std::to_string(*wanted)) return;
      collected.push_back(parse_rank_steps(text.substr(space + 1)));
      if (std::ssize(collected) < group.size) continue;
      wanted.reset();
      summary = summarize(collected);
      options.log("firkin.watch, " + describe(summary));
      return;
    }
  }
};

Watch::Watch(DataParallel& ddp, const ProcessGroup& group, WatchOptions options)
    : parts_(std::make_unique<Parts>(Parts{.ddp = ddp, .group = group, .options = std::move(options)})) {
  Parts& parts = *parts_;
  if (parts.options.every < 1 || parts.options.warmup < 0) {
    throw InputError(fmt::format("Watch: every {}, warmup {}; expected at least 1 and 0", parts.options.every, parts.options.warmup));
  }
  if (!parts.options.log) parts.options.log = [](const std::string& lines) { std::cerr << lines << std::flush; };
  // Each rank counts its own watches. The number is the same on all ranks, since they make them in the same order.
  parts.key = fmt::format("firkin/watch/{}", group.store->add(fmt::format("firkin/watches/{}", group.rank), 1));
  parts.steps = ddp.stats().steps;
  // At least one step of warm-up, because it is not known when the step before the first one ended.
  parts.first_step = parts.steps + 1 + std::max<int64_t>(1, parts.options.warmup);
  parts.mine.host = host_name();
  parts.mine.threads = at::get_num_threads();
  parts.mine.cpus = allowed_cpus();
  parts.mine.phases = {"before backward", "backward"};
  ddp.observe_steps([&parts] {
    try {
      parts.step_ended();
    } catch (const std::exception& error) {  // from the store: training goes on without the watch
      parts.options.log(fmt::format("firkin.watch ends: {}\n", first_line(error.what())));
      parts.ddp.observe_steps(nullptr);
    }
  });
}

Watch::~Watch() {
  parts_->ddp.observe_steps(nullptr);
}

const WatchSummary& Watch::summary() const {
  return parts_->summary;
}

}  // namespace firkin
