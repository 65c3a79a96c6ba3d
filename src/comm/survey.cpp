#include "survey.h"

#include <exception>
#include <thread>

namespace firkin {
namespace {

constexpr const char* kSomeoneFailed = "failed/any";
constexpr const char* kCause = "failed/cause";

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

Survey read_survey(c10d::Store& store, const SurveyOptions& options) {
  Survey survey;
  survey.missing = ranks_without("failed", store, options.size);
  if (survey.missing.empty()) survey.other = find_other(store, options);
  return survey;
}

Survey survey_store(c10d::Store& store, const SurveyOptions& options) {
  const auto until = Clock::now() + options.window;
  const std::chrono::milliseconds pause(50 + options.size);  // the more ranks ask at once, the less often each asks
  set_mark(store, options.rank, options.where);
  Survey survey = read_survey(store, options);
  while (!survey.missing.empty() && Clock::now() < until) {
    std::this_thread::sleep_for(pause);
    try {
      survey = read_survey(store, options);
    } catch (const std::exception&) {
      return survey;  // the store's host has finished its survey and is gone
    }
  }
  return survey;
}

}  // namespace

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

}  // namespace firkin
