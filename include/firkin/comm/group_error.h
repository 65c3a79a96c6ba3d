// The error after which a process group is of no further use.
#pragma once

#include "firkin/base/error.h"

namespace firkin {

// A collective failed or timed out: the group is lost, on this rank and soon on every other one. The message is one line and says who
// is missing: "rank 1 (gpu07) did not reach an all-reduce [Gloo: Timed out waiting 2000ms for recv operation to complete]". Every later
// collective of this group throws the same again, at once; a new group is needed to go on.
class GroupError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

}  // namespace firkin
