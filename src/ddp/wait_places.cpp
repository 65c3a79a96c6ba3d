#include "wait_places.h"

#include <fmt/format.h>

#include <algorithm>

#include "backward_watch.h"

namespace firkin {

void WaitPlaces::begin_step(int64_t step) {
  setup_.group.place->step = setup_.control.place->step = step;
  // On a CPU autograd runs hooks in the thread that has called backward(), on a device in a thread of its own.
  const bool is_on_cpu = std::ranges::all_of(setup_.parameters, [](const NamedTensor& each) { return each.tensor.is_cpu(); });
  record_step(setup_.control, setup_.control.place->wrapper, step, is_on_cpu ? nullptr : BackwardWatch::caller());
}

// In the search for crossed waits, every kind of call counts as a wrapped module, and each call as a step of it.
WaitPlaces::Call::Call(WaitPlaces& places, std::string_view name) : setup_(places.setup_), before_(*setup_.control.place) {
  constexpr int64_t kWrappers = int64_t{1} << 32;
  const auto number = static_cast<int64_t>(std::hash<std::string_view>{}(name) % static_cast<size_t>(kWrappers / 4));
  WaitPlace place;
  place.wrapper = -1 - before_.wrapper - number * kWrappers;
  place.step = ++places.calls_.try_emplace(std::string(name), -1).first->second;
  place.name = fmt::format("{} on {}", name, before_.name);
  setup_.group.place = setup_.control.place = place;
  record_step(setup_.control, place.wrapper, place.step);
}

WaitPlaces::Call::~Call() {
  setup_.group.place = setup_.control.place = before_;
}

}  // namespace firkin
