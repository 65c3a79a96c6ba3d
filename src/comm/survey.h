// Finds out which ranks are missing when a collective or a rendezvous has failed. Every rank that fails leaves a mark
// in the group's store, and waits for a while for the marks of the others.
//
// Keys, below the group's prefix:
//   failed/R      where rank R was when it failed, for example "an all-reduce"
//   failed/any    a rank has failed
//   failed/cause  the rank that gave up before any other failed
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bounded_store.h"
#include "group_store.h"

namespace firkin {

// How much longer than its window a survey may take if the store answers late.
inline constexpr std::chrono::milliseconds kSurveyGrace{800};

// Sets failed/R and failed/any. Throws c10::Error.
void set_mark(c10d::Store& store, int rank, const std::string& where);

// The same, if the store answers within kSurveyGrace.
void leave_mark(BoundedStore& store, int rank, const std::string& where);

struct FailedRank {
  NamedRank who;
  std::string where;  // from its mark
};

struct Survey {
  std::vector<NamedRank> missing;   // ranks without a mark, ascending
  std::optional<FailedRank> other;  // the first other rank whose mark differs from this rank's, or else has a mark
};

struct SurveyOptions {
  int rank = 0;
  int size = 1;
  std::string where;                 // this rank's mark
  std::chrono::milliseconds window;  // how long the other ranks have to leave theirs
};

// Leaves this rank's mark and reads the others' until all are there or the window has passed. Returns nothing if the
// store does not answer. Takes at most the window and kSurveyGrace.
std::optional<Survey> survey_ranks(BoundedStore& store, const SurveyOptions& options);

// Whether a rank has left a mark. Throws c10::Error.
bool someone_failed(c10d::Store& store);

}  // namespace firkin
