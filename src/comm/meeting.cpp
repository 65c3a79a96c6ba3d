#include "meeting.h"

#include <fmt/format.h>

#include "gloo_backend.h"
#include "linked_backend.h"
#include "missing_ranks.h"

namespace firkin {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectSlice{250};  // of waiting, between two looks whether another rank has given up
constexpr milliseconds kConnectGrace{500};  // for the connections, when the last rank arrived just in time
constexpr milliseconds kListenerPatience{400};
constexpr milliseconds kSurveyWindow{400};  // with kSurveyGrace, kConnectGrace and kConnectSlice: two seconds

std::string have_not_arrived(const std::vector<NamedRank>& absent) {
  return fmt::format("{} {} not arrived", name_ranks(absent), absent.size() == 1 ? "has" : "have");
}

[[noreturn]] void fail_to_form(const Meeting& meeting, const std::string& reason) {
  throw RuntimeError(
      fmt::format("rank {} cannot form a group of {}{} within {}: {}", meeting.rank, meeting.size, meeting.place, meeting.limit(), reason));
}

enum class Meanwhile { kWaiting, kStartedAgain, kFailure };

Meanwhile look_meanwhile(BoundedStore& store) {
  const auto answer = store.ask(kListenerPatience, [](c10d::Store& asked) {
    if (is_superseded(asked)) return Meanwhile::kStartedAgain;
    return someone_failed(asked) ? Meanwhile::kFailure : Meanwhile::kWaiting;
  });
  return answer.value_or(Meanwhile::kWaiting);
}

// Why the group cannot be formed, as far as the marks of the ranks tell.
std::string find_reason(const std::optional<Survey>& survey) {
  if (!survey) return "the store does not answer";
  std::vector<NamedRank> absent;
  std::copy_if(survey->missing.begin(), survey->missing.end(), std::back_inserter(absent),
               [](const NamedRank& r) { return r.host.empty(); });
  if (!absent.empty()) return have_not_arrived(absent);
  if (!survey->missing.empty()) return fmt::format("{} arrived but did not connect", name_ranks(survey->missing));
  if (survey->other) return fmt::format("{} gave up", name_ranks({survey->other->who}));
  return "connecting failed";
}

}  // namespace

std::string cannot_meet(const Meeting& meeting, std::string_view why) {
  return fmt::format("rank {} cannot meet the others{}: {}", meeting.rank, meeting.place, why);
}

void fail_to_form(const Meeting& meeting, BoundedStore& store, const std::string& backend_text) {
  const auto survey = survey_ranks(store, {.rank = meeting.rank, .size = meeting.size, .where = "the rendezvous", .window = kSurveyWindow});
  std::string reason = find_reason(survey);
  if (!backend_text.empty()) reason += fmt::format(" [Gloo: {}]", shorten_backend_text(backend_text));
  fail_to_form(meeting, reason);
}

void fail_to_form(const Meeting& meeting, const Gathering& gathering) {
  if (gathering.store) {
    BoundedStore marks(gathering.store);
    fail_to_form(meeting, marks, "");
  }
  std::vector<NamedRank> absent;
  for (const int rank : gathering.absent) absent.push_back({rank, ""});
  fail_to_form(meeting, have_not_arrived(absent));
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const Meeting& meeting, const c10::intrusive_ptr<c10d::Store>& group_store) {
  auto connecting = start_detached([store = group_store, rank = meeting.rank, size = meeting.size, address = meeting.address,
                                    timeout = meeting.options.timeout] { return make_gloo_backend(store, rank, size, address, timeout); });
  const auto until = Meeting::Clock::now() + meeting.time_left(kConnectGrace);
  std::optional<BoundedStore> listener;
  while (connecting.wait_for(kConnectSlice) != std::future_status::ready) {
    // A connection of its own: Gloo may be waiting on ours, and holds it meanwhile.
    if (!listener) {
      auto clone = BoundedStore(group_store).ask(kListenerPatience, [](c10d::Store& store) { return store.clone(); });
      listener.emplace(clone.value_or(group_store));
    }
    const Meanwhile meanwhile = look_meanwhile(*listener);
    if (meanwhile == Meanwhile::kStartedAgain) return nullptr;
    if (meanwhile == Meanwhile::kFailure || Meeting::Clock::now() >= until) fail_to_form(meeting, *listener, "");
  }
  std::string error;
  try {
    auto gloo = connecting.get();
    return meeting.options.link ? make_linked_backend(std::move(gloo), *meeting.options.link) : gloo;
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  BoundedStore store(group_store);
  fail_to_form(meeting, store, error);
}

}  // namespace firkin
