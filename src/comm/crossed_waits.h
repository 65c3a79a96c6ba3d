// What a rank that waits looks for in the group's store: whether another has given up, and whether two ranks wait for each other in
// different wrapped modules, which neither would notice before its timeout.
//
// Keys, below the group's prefix, beside those of missing_ranks.h:
//   at/R     where rank R waits, once it has waited for long, and which steps it has begun
//   crossed  what the rank that found crossed waits said of them
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "bounded_store.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// at/R.
struct WaitNote {
  WaitPlace place;
  std::map<int64_t, int64_t> begun;  // wrapper -> its last step that this rank has begun
};

std::string to_text(const WaitNote& note);
std::optional<WaitNote> parse_wait_note(const std::string& text);  // nothing: it is none

// Whether neither wait can end: each rank waits in a step that the other has not begun. A note stays true while that holds, even if it is
// old: the other's wait cannot have ended without a step of this rank.
bool are_crossed(const WaitNote& one, const WaitNote& other);

struct LookOptions {
  int rank = 0;
  int size = 1;
  std::optional<WaitNote> note = std::nullopt;  // of this rank; without: only failures are looked for
  int64_t turn = 0;                             // how many looks came before, in this wait
};

struct Look {
  bool failed = false;  // a rank has given up
  std::string crossed;  // what is to be said of crossed waits; empty: there are none
};

// What another rank has found of crossed waits; empty: nothing, or the store does not answer.
std::string crossed_waits(BoundedStore& store, std::chrono::milliseconds limit);

// Leaves this rank's note at the first turn. Of many ranks a few are looked at in each turn. Nothing of note when the store does not
// answer.
Look look_around(BoundedStore& store, std::chrono::milliseconds limit, const LookOptions& options);

}  // namespace firkin
