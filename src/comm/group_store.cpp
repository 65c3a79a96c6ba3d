#include "group_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "firkin/base/json_text.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {

namespace {

constexpr size_t kMostNames = 8;  // in one message

// The store behind all prefixes, which lives as long as `store`; null if it is not on the network. Returns a plain
// pointer, because LibTorch 2.13's dynamic_intrusive_pointer_cast() never frees what it cannot cast.
const c10d::TCPStore* network_store(c10d::Store& store) {
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store);
  return dynamic_cast<const c10d::TCPStore*>(prefixed != nullptr ? prefixed->getUnderlyingNonPrefixStore().get() : &store);
}

// Appends the ranks in [first, last) that have no key of this kind. Searches by halves, so that a few missing ranks
// among many take few queries.
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

// Identifies the running kernel and this process's namespace of process numbers: processes with the same text mean the
// same by a number. Empty if /proc does not say.
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

// When the process with this number started, in the kernel's ticks; "0" if it has ended, even if nobody has waited for
// it yet.
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

std::string key_of(const char* kind, int rank) {
  return fmt::format("{}/{}", kind, rank);
}

std::string value_of(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? store.get_to_str(key) : "";
}

std::vector<NamedRank> ranks_without(const char* kind, c10d::Store& store, int size) {
  std::vector<NamedRank> missing;
  find_missing(store, kind, 0, size, missing);
  return missing;
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
