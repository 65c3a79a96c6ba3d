#include "group_store.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

// What is behind prefixes. Null for one that is not on the network.
c10::intrusive_ptr<c10d::TCPStore> network_store(const c10::intrusive_ptr<c10d::Store>& store) {
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) return network_store(prefixed->getUnderlyingNonPrefixStore());
  return c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(store);
}

}  // namespace

bool launcher_hosts_store() {
  const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return hosted != nullptr && std::string_view(hosted) == "True";
}

c10::intrusive_ptr<c10d::Store> next_group_store(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  const char* restart = launcher_hosts_store() ? std::getenv("TORCHELASTIC_RESTART_COUNT") : nullptr;
  const std::string attempt = fmt::format("firkin/{}", restart == nullptr ? "0" : restart);
  c10d::PrefixStore counters(attempt, store);
  const int64_t earlier = counters.add(fmt::format("groups/rank{}", rank), 1) - 1;
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", attempt, earlier), store);
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
