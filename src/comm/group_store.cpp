#include "group_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "firkin/base/json_text.h"
#include "firkin/base/units.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {

namespace {

constexpr const char* kGenerations = "generations";
constexpr const char* kRoster = "roster";
constexpr const char* kSuperseded = "superseded";
constexpr const char* kSize = "size";
constexpr std::chrono::milliseconds kLongestPause{100};  // between two questions
constexpr const char* kSomeoneFailed = "failed/any";
constexpr const char* kCause = "failed/cause";
constexpr size_t kMostNames = 8;  // in one message

// The store behind all prefixes, which lives as long as `store`; null if it is not on the network. A plain pointer:
// LibTorch's dynamic_intrusive_pointer_cast() never frees what it cannot cast.
const c10d::TCPStore* network_store(c10d::Store& store) {
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store);
  return dynamic_cast<const c10d::TCPStore*>(prefixed != nullptr ? prefixed->getUnderlyingNonPrefixStore().get() : &store);
}

std::string key_of(const char* kind, int rank) {
  return fmt::format("{}/{}", kind, rank);
}

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

struct Roster {
  std::string why_not_nccl;
  std::vector<std::string> tokens;  // by rank
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Roster, why_not_nccl, tokens)

Roster read_roster(c10d::Store& group) {
  return nlohmann::json::parse(group.get(kRoster)).get<Roster>();
}

// arrivals: by rank, as Gatherer::arrive() leaves them.
Roster make_roster(const std::vector<std::vector<uint8_t>>& arrivals) {
  Roster roster;
  std::set<std::string> gpus;
  size_t without = 0;
  std::string shared;
  for (const std::vector<uint8_t>& arrival : arrivals) {
    const auto [token, gpu, name, host] = nlohmann::json::parse(arrival).get<std::array<std::string, 4>>();
    roster.tokens.push_back(token);
    if (gpu.empty()) {
      ++without;
    } else if (!gpus.insert(gpu).second) {
      shared = fmt::format("more than one rank uses {} of {}", name, host);
    }
  }
  roster.why_not_nccl = shared;
  if (without > 0) roster.why_not_nccl = fmt::format("{} of {} ranks have no GPU, or no NCCL", without, arrivals.size());
  return roster;
}

// The key's value, or an empty text: get() alone would wait for the key.
std::string value_of(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? store.get_to_str(key) : "";
}

// Appends the ranks in [first, last) that have no key of this kind. Searches by halves, so that a few missing ranks among
// many take few queries.
void find_missing(c10d::Store& store, const char* kind, int first, int last, std::vector<NamedRank>& missing) {
  std::vector<std::string> keys;
  for (int rank = first; rank < last; ++rank) keys.push_back(key_of(kind, rank));
  if (store.check(keys)) return;
  if (last - first == 1) {
    missing.push_back({first, missing.size() < kMostNames ? value_of(store, key_of("host", first)) : ""});
    return;
  }
  const int middle = first + (last - first) / 2;
  find_missing(store, kind, first, middle, missing);
  find_missing(store, kind, middle, last, missing);
}

// Takes one rank through the generations of a store.
class Gatherer {
 public:
  using Store = c10::intrusive_ptr<c10d::Store>;

  Gatherer(const Store& store, const Arrival& arrival, Clock::time_point until)
      : all_(c10::make_intrusive<c10d::PrefixStore>("firkin", store)),
        arrival_(arrival),
        token_(fmt::format("{:016x}.{:016x}", arrival.process, random_number())),
        until_(until),
        // The more ranks there are, the less often each asks.
        longest_pause_(kLongestPause + std::chrono::milliseconds(arrival.size / 4)) {}

  Gathering open() {
    const int64_t number = all_->add(kGenerations, 1);
    if (number > 1) overtake(*part(number - 1));
    const Store group = part(number);
    group->set(kSize, std::to_string(arrival_.size));
    arrive(*group);
    std::vector<std::string> keys;
    for (int rank = 0; rank < arrival_.size; ++rank) keys.push_back(key_of("arrival", rank));
    while (!group->check(keys)) {
      const bool is_contradicted = has_double(*part(number + 1), *group) || group->check({kContradiction});
      if (is_contradicted || is_late() || someone_failed(*group)) return {.store = group};
      pause(group);
    }
    const Roster roster = make_roster(group->multiGet(keys));
    group->set(kRoster, dump_json(roster));
    return {.complete = true, .store = group, .why_not_nccl = roster.why_not_nccl};
  }

  Gathering join() {
    all_->set(key_of("waiting", arrival_.rank), token_);
    Gathering result = await_roster();
    if (!result.store) {
      result.absent = {NamedRank{.rank = 0}};
      find_missing(*all_, "waiting", 1, arrival_.size, result.absent);
    }
    // If this rank gives up, others may still look for it.
    if (result.complete) all_->deleteKey(key_of("waiting", arrival_.rank));
    return result;
  }

 private:
  Gathering await_roster() {
    int64_t over = 0;    // this generation and those before it are over for this rank
    int64_t joined = 0;  // the generation in which this rank has arrived, or that it has contradicted
    bool has_arrived = false;
    for (;; pause(joined > over ? part(joined) : nullptr)) {
      const int64_t number = all_->add(kGenerations, 0);
      const Store group = part(number);
      if (number > over && joined == number && has_arrived && has_double(*group, *group)) return {.store = group};
      if (number > over && group->check({kRoster})) {
        const Roster roster = read_roster(*group);
        if (token_of_this_rank(roster) == token_) return {.complete = true, .store = group, .why_not_nccl = roster.why_not_nccl};
        overtake(*group);
        over = number;
      } else if (number > over && someone_failed(*group)) {
        if (joined == number) return {.store = group};
        over = number;  // it failed before this rank came: an earlier attempt
      } else if (number > over && joined != number && group->check({kSize})) {
        const std::string size = group->get_to_str(kSize);
        has_arrived = size == std::to_string(arrival_.size);
        if (has_arrived) {
          arrive(*group);
        } else {  // an error if rank 0 is alive: it looks for this
          contradict(*group, fmt::format("rank 0 was started as one of {}; expected one number of ranks for all", size));
        }
        joined = number;
      }
      if (is_late()) return {.store = joined > over && has_arrived ? part(joined) : nullptr};
    }
  }

  // Tells all ranks why this one can be of no group with them.
  void contradict(c10d::Store& group, const std::string& why) {
    group.set(kContradiction, fmt::format("rank {} of {} on {}: {}", arrival_.rank, arrival_.size, host_name(), why));
  }

  // Whether another process has arrived in `group` as this rank. Both are alive, since this one asks.
  bool has_double(c10d::Store& group, c10d::Store& own_group) {
    const std::string arrival = value_of(group, key_of("arrival", arrival_.rank));
    if (arrival.empty()) return false;
    const auto [token, gpu, name, host] = nlohmann::json::parse(arrival).get<std::array<std::string, 4>>();
    if (token != token_) contradict(own_group, fmt::format("another process on {} has this rank; expected one for each rank", host));
    return token != token_;
  }

  void arrive(c10d::Store& group) {
    announce_rank(group, arrival_.rank);
    group.set(key_of("arrival", arrival_.rank), dump_json({token_, arrival_.gpu, arrival_.gpu_name, host_name()}));
  }

  // If another life of this rank is in the roster, the others may still be waiting for that one: tells them.
  void overtake(c10d::Store& group) {
    if (!group.check({kRoster})) return;
    const std::string token = token_of_this_rank(read_roster(group));
    if (!token.starts_with(fmt::format("{:016x}.", arrival_.process))) group.set(kSuperseded, "");
  }

  std::string token_of_this_rank(const Roster& roster) const {
    const auto rank = static_cast<size_t>(arrival_.rank);
    return rank < roster.tokens.size() ? roster.tokens[rank] : "";
  }

  Store part(int64_t number) const { return c10::make_intrusive<c10d::PrefixStore>(std::to_string(number), all_); }
  bool is_late() const { return Clock::now() >= until_; }
  // group: the one in which this rank has arrived; null if rank 0 has opened none.
  void pause(const Store& group) {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, longest_pause_);
    if (arrival_.report) arrival_.report->wait_goes_on([&] { return name_ranks(awaited(group)); });
  }

  std::vector<NamedRank> awaited(const Store& group) const {
    std::vector<NamedRank> absent;
    if (group) find_missing(*group, "arrival", 0, arrival_.size, absent);
    return absent.empty() ? std::vector{NamedRank{.rank = 0}} : absent;
  }

  const Store all_;
  const Arrival& arrival_;
  const std::string token_;  // "PROCESS.ATTEMPT": one process may form several groups, and fail to
  const Clock::time_point until_;
  const std::chrono::milliseconds longest_pause_;
  std::chrono::milliseconds pause_{1};
};

std::optional<FailedRank> find_other(c10d::Store& store, const SurveyOptions& options) {
  std::optional<FailedRank> found;
  if (const std::string cause = value_of(store, kCause); !cause.empty() && cause != std::to_string(options.rank)) {
    const int rank = std::stoi(cause);
    return FailedRank{{rank, value_of(store, key_of("host", rank))}, value_of(store, key_of("failed", rank))};
  }
  for (int rank = 0; rank < options.size; ++rank) {
    if (rank == options.rank) continue;
    const std::string where = value_of(store, key_of("failed", rank));
    if (where.empty()) continue;
    if (!found || where != options.where) found = FailedRank{{rank, value_of(store, key_of("host", rank))}, where};
    if (where != options.where) return found;
  }
  return found;
}

Survey look(c10d::Store& store, const SurveyOptions& options) {
  Survey survey;
  find_missing(store, "failed", 0, options.size, survey.missing);
  if (survey.missing.empty()) survey.other = find_other(store, options);
  return survey;
}

Survey survey_store(c10d::Store& store, const SurveyOptions& options) {
  const auto until = Clock::now() + options.window;
  const std::chrono::milliseconds pause(50 + options.size);  // the more ranks ask at once, the less often each does
  set_mark(store, options.rank, options.where);
  Survey survey = look(store, options);
  while (!survey.missing.empty() && Clock::now() < until) {
    std::this_thread::sleep_for(pause);
    try {
      survey = look(store, options);
    } catch (const std::exception&) {
      return survey;  // the store's host has finished its survey and is gone
    }
  }
  return survey;
}

// Process numbers mean the same to all processes with equal texts. Empty if /proc does not tell.
const std::string& kernel_and_namespace() {
  static const std::string value = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::error_code failed;
    const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", failed).string();
    return boot.empty() || failed ? "" : boot + "/" + space;
  }();
  return value;
}

// When the process with this number started, in the kernel's ticks; "0" for one that has ended, also if nobody has
// waited for it yet.
std::string start_time(const std::string& number) {
  std::ifstream in("/proc/" + number + "/stat");
  std::string line;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');  // the name before may contain anything
  if (name_end == std::string::npos) return "0";
  std::istringstream words(line.substr(name_end + 1));
  std::string state, word;
  words >> state;
  if (state == "Z" || state == "X") return "0";
  constexpr int kWordsUntilStart = 19;  // proc(5): starttime is field 22, the state field 3
  for (int i = 0; i < kWordsUntilStart; ++i) words >> word;
  return word;
}

}  // namespace

WaitReport::WaitReport(std::string who, std::chrono::milliseconds after) : who_(std::move(who)), due_(started_ + after) {}

void WaitReport::wait_goes_on(c10::function_ref<std::string()> for_whom) {
  constexpr std::chrono::minutes kBetween{1};
  if (Clock::now() < due_) return;
  due_ = Clock::now() + kBetween;
  fmt::print(stderr, "firkin: {} has waited for {} for {}\n", who_, for_whom(), format_seconds(seconds_since(started_)));
}

uint64_t this_process() {
  static const uint64_t number = random_number();
  return number ^ static_cast<uint64_t>(getpid());  // a forked process gets another number
}

Gathering gather_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Arrival& arrival, Clock::time_point until) {
  Gatherer gatherer(store, arrival, until);
  return arrival.rank == 0 ? gatherer.open() : gatherer.join();
}

bool is_superseded(c10d::Store& group_store) {
  return group_store.check({kSuperseded});
}

std::string store_name(const c10::intrusive_ptr<c10d::Store>& store) {
  const c10d::TCPStore* const tcp = network_store(*store);
  return tcp == nullptr ? "the store" : fmt::format("the store at {}:{}", tcp->getHost(), tcp->getPort());
}

std::string store_address(const c10::intrusive_ptr<c10d::Store>& store) {
  const c10d::TCPStore* const tcp = network_store(*store);
  return tcp == nullptr ? "127.0.0.1" : tcp->getHost();
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown host";
  return name;
}

void announce_rank(c10d::Store& store, int rank) {
  store.set(key_of("host", rank), host_name());
  const std::string number = std::to_string(getpid());
  store.set(key_of("process", rank), dump_json({kernel_and_namespace(), number, start_time(number)}));
}

std::map<int, LocalProcess> processes_nearby(c10d::Store& store, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key_of("process", rank));
  const std::vector<std::vector<uint8_t>> all = store.multiGet(keys);
  std::map<int, LocalProcess> result;
  for (int rank = 0; rank < size; ++rank) {
    const auto [place, number, started] = nlohmann::json::parse(all[static_cast<size_t>(rank)]).get<std::array<std::string, 3>>();
    const bool is_here = !place.empty() && place == kernel_and_namespace();
    if (is_here && number != std::to_string(getpid())) result.emplace(rank, LocalProcess{number, started});
  }
  return result;
}

bool has_ended(const LocalProcess& process) {
  return start_time(process.number) != process.started;
}

void set_mark(c10d::Store& store, int rank, const std::string& where) {
  store.set(key_of("failed", rank), where);
  store.set(kSomeoneFailed, "");
}

void leave_mark(BoundedStore& store, int rank, const std::string& where) {
  store.ask(kSurveyGrace, [rank, where](c10d::Store& asked) {
    if (!asked.check({kSomeoneFailed})) asked.set(kCause, std::to_string(rank));
    set_mark(asked, rank, where);
    return true;
  });
}

std::optional<Survey> survey_ranks(BoundedStore& store, const SurveyOptions& options) {
  return store.ask(options.window + kSurveyGrace, [options](c10d::Store& asked) { return survey_store(asked, options); });
}

bool someone_failed(c10d::Store& store) {
  return store.check({kSomeoneFailed});
}

std::string name_ranks(const std::vector<NamedRank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNames); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i].rank);
    if (!ranks[i].host.empty()) text += fmt::format(" ({})", ranks[i].host);
  }
  if (ranks.size() > kMostNames) text += fmt::format(" and {} more", ranks.size() - kMostNames);
  return text;
}

}  // namespace firkin
