// The loss of a group, told once and the same way to everything that still wants it.
#pragma once

#include <string>

#include "firkin/comm/process_group.h"

namespace firkin {

// A collective of this rank has failed at `what` ("an all-reduce"). Finds out which ranks are missing, which takes less than four seconds
// (see missing_ranks.h), records the loss in the group's state, and throws GroupError. backend_text: its raw error; empty: another rank
// gave up first. backend: whose error, for people.
[[noreturn]] void lose_group(const ProcessGroup& group, const std::string& what, const std::string& backend_text,
                             const char* backend = "Gloo");

// Records the loss and throws GroupError: another rank has said already what there is to say.
[[noreturn]] void lose_group_as(const ProcessGroup& group, const std::string& message);

// Throws GroupError with the first loss's message when the group is lost.
void throw_if_lost(const ProcessGroup& group);

}  // namespace firkin
