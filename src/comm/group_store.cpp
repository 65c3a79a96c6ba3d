#include "group_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "missing_ranks.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

constexpr const char* kGenerations = "generations";
constexpr const char* kRoster = "roster";
constexpr const char* kSuperseded = "superseded";
constexpr std::chrono::milliseconds kLongestPause{100};  // between two questions

// What is behind prefixes. Null for one that is not on the network.
c10::intrusive_ptr<c10d::TCPStore> network_store(const c10::intrusive_ptr<c10d::Store>& store) {
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) return network_store(prefixed->getUnderlyingNonPrefixStore());
  return c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(store);
}

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string arrival_key(int rank) {
  return fmt::format("arrival/{}", rank);
}

std::string waiting_key(int rank) {
  return fmt::format("waiting/{}", rank);
}

// "PROCESS.ATTEMPT": one process may form several groups, and fail to.
std::string new_token(uint64_t process) {
  return fmt::format("{:016x}.{:016x}", process, random_number());
}

bool is_of_process(const std::string& token, uint64_t process) {
  return token.starts_with(fmt::format("{:016x}.", process));
}

// The first line says why there can be no NCCL, the second has the tokens by rank.
struct Roster {
  std::string why_not_nccl;
  std::vector<std::string> tokens;
};

std::string to_text(const Roster& roster) {
  std::string text = roster.why_not_nccl + "\n";
  for (const std::string& token : roster.tokens) text += token + " ";
  return text;
}

Roster parse_roster(const std::string& text) {
  std::istringstream in(text);
  Roster roster;
  std::getline(in, roster.why_not_nccl);
  for (std::string token; in >> token;) roster.tokens.push_back(token);
  return roster;
}

// Arrivals as texts, by rank, each of lines: token, GPU, its name, host.
Roster make_roster(const std::vector<std::vector<uint8_t>>& arrivals) {
  Roster roster;
  std::set<std::string> gpus;
  size_t without = 0;
  std::string shared;
  for (const std::vector<uint8_t>& arrival : arrivals) {
    std::istringstream in(std::string(arrival.begin(), arrival.end()));
    std::string token, gpu, name, host;
    for (std::string* line : {&token, &gpu, &name, &host}) std::getline(in, *line);
    roster.tokens.push_back(token);
    if (gpu.empty()) {
      ++without;
    } else if (!gpus.insert(gpu).second) {
      shared = fmt::format("more than one rank uses {} of {}", name, host);
    }
  }
  roster.why_not_nccl = shared;
  if (without > 0) roster.why_not_nccl = fmt::format("{} of {} ranks have no GPU for it, or no NCCL", without, arrivals.size());
  return roster;
}

// One rank's way through the generations of one store.
class Gatherer {
 public:
  using Store = c10::intrusive_ptr<c10d::Store>;
  using Clock = std::chrono::steady_clock;

  Gatherer(const Store& store, const Arrival& arrival, Clock::time_point until)
      : all_(c10::make_intrusive<c10d::PrefixStore>("firkin", store)),
        arrival_(arrival),
        token_(new_token(arrival.process)),
        until_(until),
        longest_pause_(kLongestPause + std::chrono::milliseconds(arrival.size / 4)) {}  // of many ranks, each asks the less often

  Gathering open() {
    const int64_t number = all_->add(kGenerations, 1);
    if (number > 1) overtake(*part(number - 1));
    const Store group = part(number);
    arrive(*group);
    std::vector<std::string> keys;
    for (int rank = 0; rank < arrival_.size; ++rank) keys.push_back(arrival_key(rank));
    while (!group->check(keys)) {
      if (is_late() || someone_failed(*group)) return {.store = group};
      pause();
    }
    const Roster roster = make_roster(group->multiGet(keys));
    group->set(kRoster, to_text(roster));
    return {.complete = true, .store = group, .why_not_nccl = roster.why_not_nccl};
  }

  Gathering join() {
    all_->set(waiting_key(arrival_.rank), token_);
    Gathering result = await_roster();
    if (!result.store) result.absent = find_absent();
    if (result.complete) all_->deleteKey(waiting_key(arrival_.rank));  // who gives up was here: others may still ask
    return result;
  }

 private:
  Gathering await_roster() {
    int64_t over = 0;    // up to this one, generations are not for this rank
    int64_t joined = 0;  // this rank has arrived in it
    for (;; pause()) {
      const int64_t number = all_->add(kGenerations, 0);
      const Store group = part(number);
      if (number > over && group->check({kRoster})) {
        const Roster roster = parse_roster(group->get_to_str(kRoster));
        if (token_of_this_rank(roster) == token_) return {.complete = true, .store = group, .why_not_nccl = roster.why_not_nccl};
        overtake(*group);
        over = number;
      } else if (number > over && someone_failed(*group)) {
        if (joined == number) return {.store = group};
        over = number;  // before this rank came: of an earlier attempt
      } else if (number > over && joined != number) {
        arrive(*group);
        joined = number;
      }
      if (is_late()) return {.store = joined > over ? part(joined) : nullptr};
    }
  }

  void arrive(c10d::Store& group) {
    announce_host(group, arrival_.rank);
    group.set(arrival_key(arrival_.rank), fmt::format("{}\n{}\n{}\n{}", token_, arrival_.gpu, arrival_.gpu_name, host_name()));
  }

  // Where another life of this rank is in the roster, the others may still be waiting for it.
  void overtake(c10d::Store& group) {
    if (!group.check({kRoster})) return;
    const std::string token = token_of_this_rank(parse_roster(group.get_to_str(kRoster)));
    if (!is_of_process(token, arrival_.process)) group.set(kSuperseded, "");
  }

  std::string token_of_this_rank(const Roster& roster) const {
    const auto rank = static_cast<size_t>(arrival_.rank);
    return rank < roster.tokens.size() ? roster.tokens[rank] : "";
  }

  std::vector<int> find_absent() {
    std::vector<int> absent{0};
    for (int rank = 1; rank < arrival_.size; ++rank) {
      if (!all_->check({waiting_key(rank)})) absent.push_back(rank);
    }
    return absent;
  }

  Store part(int64_t number) const { return c10::make_intrusive<c10d::PrefixStore>(std::to_string(number), all_); }
  bool is_late() const { return Clock::now() >= until_; }
  void pause() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, longest_pause_);
  }

  const Store all_;
  const Arrival& arrival_;
  const std::string token_;
  const Clock::time_point until_;
  const std::chrono::milliseconds longest_pause_;
  std::chrono::milliseconds pause_{1};
};

}  // namespace

bool launcher_hosts_store() {
  const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return hosted != nullptr && std::string_view(hosted) == "True";
}

uint64_t this_process() {
  static const uint64_t number = random_number();
  return number ^ static_cast<uint64_t>(getpid());  // a fork's is another
}

Gathering gather_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Arrival& arrival, std::chrono::steady_clock::time_point until) {
  Gatherer gatherer(store, arrival, until);
  return arrival.rank == 0 ? gatherer.open() : gatherer.join();
}

bool is_superseded(c10d::Store& group_store) {
  return group_store.check({kSuperseded});
}

std::string store_name(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto tcp = network_store(store);
  return tcp == nullptr ? "the store" : fmt::format("the store at {}:{}", tcp->getHost(), tcp->getPort());
}

std::string store_address(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto tcp = network_store(store);
  return tcp == nullptr ? "127.0.0.1" : tcp->getHost();
}

}  // namespace firkin
