#include "missing_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kSomeoneFailed = "failed/any";
constexpr const char* kCause = "failed/cause";
constexpr size_t kMostNames = 8;  // in one message

std::string failed_key(int rank) {
  return fmt::format("failed/{}", rank);
}

std::string host_key(int rank) {
  return fmt::format("host/{}", rank);
}

// The value, or nothing: get() alone would wait for the key.
std::string value_of(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? store.get_to_str(key) : "";
}

// Appends the ranks in [first, last) that have no mark. By halves: a few of many ranks are found with few questions.
void find_missing(c10d::Store& store, int first, int last, std::vector<NamedRank>& missing) {
  std::vector<std::string> keys;
  for (int rank = first; rank < last; ++rank) keys.push_back(failed_key(rank));
  if (store.check(keys)) return;
  if (last - first == 1) {
    missing.push_back({first, missing.size() < kMostNames ? value_of(store, host_key(first)) : ""});
    return;
  }
  const int middle = first + (last - first) / 2;
  find_missing(store, first, middle, missing);
  find_missing(store, middle, last, missing);
}

std::optional<FailedRank> find_other(c10d::Store& store, const SurveyOptions& options) {
  std::optional<FailedRank> found;
  if (const std::string cause = value_of(store, kCause); !cause.empty() && cause != std::to_string(options.rank)) {
    const int rank = std::stoi(cause);
    return FailedRank{{rank, value_of(store, host_key(rank))}, value_of(store, failed_key(rank))};
  }
  for (int rank = 0; rank < options.size; ++rank) {
    if (rank == options.rank) continue;
    const std::string where = value_of(store, failed_key(rank));
    if (where.empty()) continue;
    if (!found || where != options.where) found = FailedRank{{rank, value_of(store, host_key(rank))}, where};
    if (where != options.where) return found;
  }
  return found;
}

Survey look(c10d::Store& store, const SurveyOptions& options) {
  Survey survey;
  find_missing(store, 0, options.size, survey.missing);
  if (survey.missing.empty()) survey.other = find_other(store, options);
  return survey;
}

Survey survey_store(c10d::Store& store, const SurveyOptions& options) {
  const auto until = Clock::now() + options.window;
  const std::chrono::milliseconds pause(50 + options.size);  // many ranks ask at once: each the less often, the more they are
  set_mark(store, options.rank, options.where);
  Survey survey = look(store, options);
  while (!survey.missing.empty() && Clock::now() < until) {
    std::this_thread::sleep_for(pause);
    try {
      survey = look(store, options);
    } catch (const std::exception&) {
      return survey;  // the store's host has seen enough and is gone
    }
  }
  return survey;
}

std::string name_rank(const NamedRank& rank) {
  return rank.host.empty() ? fmt::format("{}", rank.rank) : fmt::format("{} ({})", rank.rank, rank.host);
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown host";
  return name;
}

void announce_host(c10d::Store& store, int rank) {
  store.set(host_key(rank), host_name());
}

void set_mark(c10d::Store& store, int rank, const std::string& where) {
  store.set(failed_key(rank), where);
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

bool someone_failed(BoundedStore& store, std::chrono::milliseconds limit) {
  return store.ask(limit, [](c10d::Store& asked) { return someone_failed(asked); }).value_or(false);
}

std::string name_ranks(const std::vector<NamedRank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNames); ++i) text += (i == 0 ? "" : ", ") + name_rank(ranks[i]);
  if (ranks.size() > kMostNames) text += fmt::format(" and {} more", ranks.size() - kMostNames);
  return text;
}

}  // namespace firkin
