// The error after which a process group can no longer be used.
#pragma once

#include "firkin/base/error.h"

namespace firkin {

// A collective failed or timed out: the group is lost, on this rank and soon on all others. The one-line message names the missing ranks:
// "rank 1 (gpu07) did not reach an all-reduce [Gloo: Timed out waiting 2000ms for recv operation to complete]". Later collectives of this
// group throw the same error at once; create a new group to continue.
class GroupError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

}  // namespace firkin
