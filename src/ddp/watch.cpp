#include "firkin/ddp/watch.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <iostream>
#include <thread>
#include <utility>

#include "comm/group_store.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "plan/watch_exchange.h"

namespace firkin {
namespace {

constexpr int64_t kCollectEvery = 10;  // steps from one reading of the store to the next

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

struct Watch::Parts {
  DataParallel& ddp;
  ProcessGroup group;
  WatchOptions options;
  int64_t first_step = 0;                               // the first step of the first window
  int64_t steps = 0;                                    // from the last stats()
  std::chrono::steady_clock::time_point last_end = {};  // the end of the previous step
  std::optional<WatchExchange> exchange = {};
  RankSteps mine = {};  // this rank's steps of the current window
  WatchSummary summary = {};
  bool is_open = true;

  void step_ended() {
    const DataParallelStats stats = ddp.stats();
    const auto before = std::exchange(last_end, stats.ended);
    if (std::exchange(steps, stats.steps) + 1 != stats.steps || stats.steps < first_step) return;
    if ((stats.steps - first_step) / options.every > exchange->windows()) end_window();
    mine.bucket_bytes.clear();
    for (const BucketStats& bucket : stats.buckets) mine.bucket_bytes.push_back(bucket.bytes);
    const double gradients_s = seconds(stats.ended - stats.began);
    RankStep& step = mine.steps.emplace_back(
        RankStep{.step = stats.steps,
                 .phases_s = {seconds(stats.began - before) - stats.forward_wait_s, gradients_s - stats.exposed_wait_s},
                 .exposed_s = stats.exposed_wait_s + stats.forward_wait_s,
                 .gradients_s = gradients_s});
    for (const BucketStats& bucket : stats.buckets) step.sent_s.push_back(gradients_s - bucket.launch_s);
    if (stats.steps % kCollectEvery == 0) collect();
  }

  void end_window() {
    const auto [key, value] = exchange->end_window(rank_steps_text(mine));
    group.store->set(key, value);
    mine.steps.clear();
  }

  // On rank 0: reads what the others have set in the store, without waiting, and logs the summary once it has all.
  void collect() {
    const auto has = [this](const std::string& key) { return group.store->check({key}); };
    const auto get = [this](const std::string& key) { return group.store->get_to_str(key); };
    if (!exchange->collect(has, get)) return;
    std::vector<RankSteps> ranks;
    for (const std::string& text : exchange->texts()) ranks.push_back(parse_rank_steps(text));
    summary = summarize(ranks);
    options.log("firkin.watch, " + describe(summary));
  }
};

Watch::Watch(DataParallel& ddp, const ProcessGroup& group, WatchOptions options)
    : parts_(std::make_unique<Parts>(Parts{.ddp = ddp, .group = group, .options = std::move(options)})) {
  Parts& parts = *parts_;
  if (parts.options.every < 1 || parts.options.warmup < 0) {
    throw InputError(fmt::format("Watch: every {}, warmup {}; expected at least 1 and 0", parts.options.every, parts.options.warmup));
  }
  if (!parts.options.log) parts.options.log = [](const std::string& lines) { std::cerr << lines << std::flush; };
  // Each rank counts its own watches. All ranks get the same number, since they make their watches in the same order.
  parts.exchange.emplace(group.store->add(fmt::format("firkin/watches/{}", group.rank), 1), group.rank, group.size);
  parts.steps = ddp.stats().steps;
  // At least one step of warm-up: nobody knows when the step before the first one ended.
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
  if (std::uncaught_exceptions() > 0) {  // the other ranks may be waiting for this one
    parts_->ddp.observe_steps(nullptr);
    return;
  }
  try {
    close();
  } catch (const std::exception&) {  // the store may be gone with the rank that holds it
  }
}

void Watch::close(std::chrono::milliseconds timeout) {
  Parts& parts = *parts_;
  if (!std::exchange(parts.is_open, false)) return;
  parts.ddp.observe_steps(nullptr);
  if (parts.exchange->windows() == 0 && !parts.mine.steps.empty()) parts.end_window();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (parts.exchange->is_collecting() && std::chrono::steady_clock::now() < deadline) {
    parts.collect();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const WatchSummary& Watch::summary() const {
  return parts_->summary;
}

}  // namespace firkin
