#include "firkin/ddp/strategy.h"

#include <fmt/format.h>

#include "firkin/base/error.h"
#include "torch_reducer.h"

namespace firkin {

const Strategy& find_strategy(std::string_view name) {
  std::string names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name == name) return strategy;
    names += names.empty() ? "" : ", ";
    names += strategy.name;
  }
  throw InputError(fmt::format("strategy {}: expected one of {}", name, names));
}

std::string why_unavailable(const Strategy& strategy) {
  return strategy.launch == Launch::kByTorch ? torch_reducer_unavailable() : "";
}

}  // namespace firkin
