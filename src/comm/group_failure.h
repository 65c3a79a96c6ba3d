// Why a collective failed: what the backend says, in one line, which rank is lost, and whether ranks wait for each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "firkin/comm/process_group.h"
#include "group_store.h"

namespace firkin {

// Error texts of LibTorch and Gloo, as one line of ours quotes them.

// The first line, without the place in the other project's sources before it, the advice after it, and a full stop at its end:
// "[.../pair.cc:547] Connection closed by peer [127.0.0.1]:1234" -> "Connection closed by peer [127.0.0.1]:1234".
std::string shorten_backend_text(std::string_view text);

// The loss of a group, told once and the same way to everything that still wants it.

// A collective of this rank has failed at `what` ("an all-reduce"). Finds out which ranks are missing, which takes less than four seconds
// (see group_store.h), records the loss in the group's state, and throws GroupError. backend_text: its raw error; empty: another rank
// gave up first. backend: whose error, for people.
[[noreturn]] void lose_group(const ProcessGroup& group, const std::string& what, const std::string& backend_text,
                             const char* backend = "Gloo");

// Records the loss and throws GroupError: another rank has said already what there is to say.
[[noreturn]] void lose_group_as(const ProcessGroup& group, const std::string& message);

// Throws GroupError with the first loss's message when the group is lost.
void throw_if_lost(const ProcessGroup& group);

// What a rank that waits looks for in the group's store: whether another has given up, and whether two ranks wait for each other in
// different wrapped modules, which neither would notice before its timeout.
//
// Keys, below the group's prefix, beside those of group_store.h:
//   at/R     where rank R waits, once it has waited for long, and which steps it has begun
//   crossed  what the rank that found crossed waits said of them

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
