#include "firkin/ddp/strategy.h"

#include <fmt/format.h>

#include <string>

#include "firkin/base/error.h"

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

}  // namespace firkin
