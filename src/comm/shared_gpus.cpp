#include "shared_gpus.h"

#include <fmt/format.h>

#include "missing_ranks.h"

namespace firkin {
namespace {

constexpr const char* kClaims = "gpu/claims";
constexpr const char* kShared = "gpu/shared";

}  // namespace

void claim_gpu(c10d::Store& store, const std::string& gpu, const std::string& name) {
  if (store.add("gpu/" + gpu, 1) > 1) store.set(kShared, fmt::format("more than one rank uses {} of {}", name, host_name()));
  store.add(kClaims, 1);
}

std::string why_not_nccl(c10d::Store& store, int size) {
  const int64_t claims = store.add(kClaims, 0);
  if (claims < size) return fmt::format("{} of {} ranks have no GPU for it, or no NCCL", size - claims, size);
  return store.check({kShared}) ? store.get_to_str(kShared) : "";
}

}  // namespace firkin
