#include "group_store.h"

#include <fmt/format.h>

#include <cstdlib>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {

c10::intrusive_ptr<c10d::Store> next_group_store(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  const char* restart = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const std::string attempt = fmt::format("firkin/{}", restart == nullptr ? "0" : restart);
  c10d::PrefixStore counters(attempt, store);
  const int64_t earlier = counters.add(fmt::format("groups/rank{}", rank), 1) - 1;
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", attempt, earlier), store);
}

std::string store_name(const c10::intrusive_ptr<c10d::Store>& store) {
  const c10d::Store* innermost = store.get();
  c10::intrusive_ptr<c10d::Store> underlying;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    underlying = prefixed->getUnderlyingNonPrefixStore();
    innermost = underlying.get();
  }
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(innermost);
  return tcp == nullptr ? "the store" : fmt::format("the store at {}:{}", tcp->getHost(), tcp->getPort());
}

}  // namespace firkin
