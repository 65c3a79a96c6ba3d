// Who is missing when a collective or a rendezvous has failed: every rank that fails leaves a mark in the group's store, and looks who
// has left none.
//
// Keys, below the group's prefix:
//   host/R      the host of rank R, from its arrival on
//   failed/R    where rank R was when it failed: "an all-reduce"
//   failed/any  a rank has failed
//   failed/cause  the rank that gave up before any other failed
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bounded_store.h"

namespace firkin {

// This machine's name.
std::string host_name();

// Sets host/R. Throws c10::Error.
void announce_host(c10d::Store& store, int rank);

inline constexpr std::chrono::milliseconds kSurveyGrace{800};

// Sets failed/R and failed/any. Throws c10::Error.
void set_mark(c10d::Store& store, int rank, const std::string& where);

// The same, where the store answers within kSurveyGrace.
void leave_mark(BoundedStore& store, int rank, const std::string& where);

struct NamedRank {
  int rank = 0;
  std::string host;  // empty: the rank never arrived
};

// A rank that has failed as well.
struct FailedRank {
  NamedRank who;
  std::string where;  // its mark
};

struct Survey {
  std::vector<NamedRank> missing;   // ranks without a mark, ascending
  std::optional<FailedRank> other;  // the first other rank with a mark that differs from this rank's; without one: any with a mark
};

struct SurveyOptions {
  int rank = 0;
  int size = 1;
  std::string where;                 // this rank's mark
  std::chrono::milliseconds window;  // how long the other ranks have to leave theirs
};

// Leaves this rank's mark and looks for the others' until all are there or the window has passed. Returns nothing when the store does
// not answer; in any case within the window and kSurveyGrace.
std::optional<Survey> survey_ranks(BoundedStore& store, const SurveyOptions& options);

// Whether a rank has left a mark. Throws c10::Error.
bool someone_failed(c10d::Store& store);

// The same; false when the store does not answer within `limit`.
bool someone_failed(BoundedStore& store, std::chrono::milliseconds limit);

// "rank 1 (gpu07)", "ranks 1 (gpu07), 3 (gpu08)"; many ranks are cut short. At least one rank.
std::string name_ranks(const std::vector<NamedRank>& ranks);

}  // namespace firkin
