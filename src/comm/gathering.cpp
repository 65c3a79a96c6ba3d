#include "gathering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "group_store.h"
#include "survey.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace firkin {

namespace {

constexpr const char* kGroups = "groups";
constexpr const char* kSize = "size";
constexpr const char* kComplete = "complete";
constexpr std::chrono::milliseconds kLongestPause{100};  // between two questions

// The value of arrival/R: the process's token, its GPU, the GPU's name, its host.
using ArrivalValue = std::array<std::string, 4>;

std::string new_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// Why not every rank has a GPU of its own for NCCL; empty if every rank has. arrivals: by rank.
std::string why_not_nccl(const std::vector<std::vector<uint8_t>>& arrivals) {
  std::set<std::string> gpus;
  size_t without = 0;
  std::string shared;
  for (const std::vector<uint8_t>& arrival : arrivals) {
    const auto [token, gpu, name, host] = nlohmann::json::parse(arrival).get<ArrivalValue>();
    if (gpu.empty()) {
      ++without;
    } else if (!gpus.insert(gpu).second) {
      shared = fmt::format("more than one rank uses {} of {}", name, host);
    }
  }
  return without > 0 ? fmt::format("{} of {} ranks have no GPU, or no NCCL", without, arrivals.size()) : shared;
}

// Takes one rank into a group. See Note [Numbered groups] in gathering.h.
class Gatherer {
 public:
  using Store = c10::intrusive_ptr<c10d::Store>;

  Gatherer(const Store& store, const Arrival& arrival, Clock::time_point until)
      : all_(c10::make_intrusive<c10d::PrefixStore>("firkin", store)),
        arrival_(arrival),
        until_(until),
        // The more ranks there are, the less often each asks the store.
        longest_pause_(kLongestPause + std::chrono::milliseconds(arrival.size / 4)) {}

  Gathering open() {
    number_ = all_->add(kGroups, 1);
    group_ = part(number_);
    group_->set(kSize, std::to_string(arrival_.size));
    arrive();
    std::vector<std::string> keys;
    for (int rank = 0; rank < arrival_.size; ++rank) keys.push_back(key_of("arrival", rank));
    while (!group_->check(keys)) {
      // A second process with rank 0 would have opened the next group.
      const bool is_contradicted = has_double(*part(number_ + 1)) || group_->check({kContradiction});
      if (is_contradicted || is_late() || someone_failed(*group_)) return {.store = group_};
      pause();
    }
    group_->set(kComplete, why_not_nccl(group_->multiGet(keys)));
    return result();
  }

  Gathering join() {
    for (;; pause()) {
      const int64_t newest = all_->add(kGroups, 0);  // read before kComplete: rank 0 completes a group before it opens another
      const bool is_complete = has_arrived_ && group_->check({kComplete});
      if (has_arrived_ && has_double(*group_)) return {.store = group_};
      if (is_complete) return result();
      if (newest > number_) enter(newest);
      if (group_ && someone_failed(*group_)) return {.store = group_};
      if (!is_late()) continue;
      if (has_arrived_) return {.store = group_};
      return {.is_left_out = number_ > 0 && part(number_)->check({kComplete})};
    }
  }

 private:
  // Arrives in the group that rank 0 has opened, unless the others have formed it, or failed to, without this process.
  // Then this process waits for the next that rank 0 opens.
  void enter(int64_t number) {
    const Store group = part(number);
    if (!group->check({kSize})) return;  // rank 0 is about to write it
    number_ = number;
    has_arrived_ = false;
    group_ = nullptr;
    if (group->check({kComplete}) || someone_failed(*group)) return;
    group_ = group;
    const std::string size = group->get_to_str(kSize);
    if (size == std::to_string(arrival_.size)) return arrive();
    // Rank 0 reads this, if it is alive.
    contradict(fmt::format("rank 0 was started as one of {}; expected one number of ranks for all", size));
  }

  void arrive() {
    announce_rank(*group_, arrival_.rank);
    group_->set(key_of("arrival", arrival_.rank), dump_json(ArrivalValue{token_, arrival_.gpu, arrival_.gpu_name, host_name()}));
    has_arrived_ = true;
  }

  // Writes down, for all ranks, why this process can form no group with them.
  void contradict(const std::string& why) {
    group_->set(kContradiction, fmt::format("rank {} of {} on {}: {}", arrival_.rank, arrival_.size, host_name(), why));
  }

  // Whether another process has arrived in `group` with this rank, and later than this one. Both are alive then.
  bool has_double(c10d::Store& group) {
    const std::string arrival = value_of(group, key_of("arrival", arrival_.rank));
    if (arrival.empty()) return false;
    const auto [token, gpu, name, host] = nlohmann::json::parse(arrival).get<ArrivalValue>();
    if (token != token_) contradict(fmt::format("another process on {} has this rank; expected one for each rank", host));
    return token != token_;
  }

  Gathering result() { return {.complete = true, .store = group_, .why_not_nccl = group_->get_to_str(kComplete)}; }
  Store part(int64_t number) const { return c10::make_intrusive<c10d::PrefixStore>(std::to_string(number), all_); }
  bool is_late() const { return Clock::now() >= until_; }

  void pause() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, longest_pause_);
    if (arrival_.report) arrival_.report->report_if_due([&] { return name_ranks(absent_ranks()); });
  }

  std::vector<NamedRank> absent_ranks() const {
    const std::vector<NamedRank> absent = group_ ? ranks_without("arrival", *group_, arrival_.size) : std::vector<NamedRank>{};
    return absent.empty() ? std::vector{NamedRank{.rank = 0}} : absent;
  }

  const Store all_;
  const Arrival& arrival_;
  const std::string token_ = new_token();
  const Clock::time_point until_;
  const std::chrono::milliseconds longest_pause_;
  std::chrono::milliseconds pause_{1};
  int64_t number_ = 0;     // of the newest group that this process knows
  Store group_ = nullptr;  // that group's part; null: this process cannot join it
  bool has_arrived_ = false;
};

}  // namespace

WaitReport::WaitReport(std::string who, std::chrono::milliseconds after) : who_(std::move(who)), due_(started_ + after) {}

void WaitReport::report_if_due(c10::function_ref<std::string()> for_whom) {
  constexpr std::chrono::minutes kBetween{1};
  if (Clock::now() < due_) return;
  due_ = Clock::now() + kBetween;
  fmt::print(stderr, "firkin: {} has waited for {} for {}\n", who_, for_whom(), format_seconds(seconds_since(started_)));
}

Gathering gather_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Arrival& arrival, Clock::time_point until) {
  Gatherer gatherer(store, arrival, until);
  return arrival.rank == 0 ? gatherer.open() : gatherer.join();
}

}  // namespace firkin
