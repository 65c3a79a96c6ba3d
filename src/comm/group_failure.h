// Why a collective failed: what the backend says, in one line, which rank is lost, and whether ranks wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "firkin/comm/process_group.h"

namespace firkin {

// An error text of LibTorch or Gloo, as one line of ours quotes it: the first line, without the place in the other project's sources before
// it, the advice after it, and a full stop at its end:
// "[.../pair.cc:547] Connection closed by peer [127.0.0.1]:1234" -> "Connection closed by peer [127.0.0.1]:1234".
std::string shorten_backend_text(std::string_view text);

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

}  // namespace firkin
