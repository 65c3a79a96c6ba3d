#include "group_failure.h"

#include <fmt/format.h>

#include "backend_text.h"
#include "crossed_waits.h"
#include "firkin/comm/group_error.h"
#include "group_state.h"
#include "missing_ranks.h"

namespace firkin {
namespace {

using namespace std::chrono_literals;

// The other ranks look for a failure every second. The rank that hosts the store stays longer: with it goes the others' answer.
constexpr auto kWindow = 2000ms;
constexpr auto kHostsWindow = 2800ms;
constexpr auto kPatience = 500ms;  // of one more question

std::string describe(const ProcessGroup& group, const std::optional<Survey>& survey, const std::string& what) {
  const GroupState& state = *group.state;
  if (!survey && state.store_host == StoreHost::kRank0) {
    return fmt::format("{}, on rank 0, does not answer: probably rank 0 did not reach {}", state.store_name, what);
  }
  if (!survey) return fmt::format("{} does not answer: an unknown rank did not reach {}", state.store_name, what);
  if (!survey->missing.empty()) return fmt::format("{} did not reach {}", name_ranks(survey->missing), what);
  if (survey->other && survey->other->where != what) {
    return fmt::format("no rank is missing: {} gave up at {}, rank {} at {}", name_ranks({survey->other->who}), survey->other->where,
                       group.rank, what);
  }
  return fmt::format("no rank is missing: all gave up at {}", what);
}

}  // namespace

void lose_group(const ProcessGroup& group, const std::string& what, const std::string& backend_text, const char* backend) {
  throw_if_lost(group);  // a failure after the first is its consequence
  GroupState& state = *group.state;
  const auto window = state.store_host == StoreHost::kThisRank ? kHostsWindow : kWindow;
  const auto survey = survey_ranks(state.store, {.rank = group.rank, .size = group.size, .where = what, .window = window});
  // Ranks that have found this out are gone, and their connections with them.
  if (const std::string crossed = crossed_waits(state.store, kPatience); !crossed.empty()) lose_group_as(group, crossed);
  std::string message = describe(group, survey, what);
  if (!backend_text.empty()) message += fmt::format(" [{}: {}]", backend, shorten_backend_text(backend_text));
  lose_group_as(group, message);
}

void lose_group_as(const ProcessGroup& group, const std::string& message) {
  const bool has_nccl_queue = group.state->device_backend == DeviceBackend::kNccl;  // what was queued behind the failure has run, or will
  group.state->lose(has_nccl_queue ? message + "; parameters may hold partial sums: load a checkpoint" : message);
  throw GroupError(group.state->loss());
}

void give_up(const ProcessGroup& group, const std::string& what) {
  throw_if_lost(group);
  leave_mark(group.state->store, group.rank, what);
  lose_group_as(group, what);
}

void throw_if_lost(const ProcessGroup& group) {
  if (group.state->lost()) throw GroupError(group.state->loss());
}

}  // namespace firkin
