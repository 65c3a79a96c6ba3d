// A backend whose collectives take the time of a modelled link.
#pragma once

#include "firkin/comm/modelled_link.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// all-reduce, broadcast and barrier of `inner`, which moves the data, and its send and recv, which pass free; other collectives are
// refused. Errors of `inner` come through at once.
//
// When the last rank has joined a collective, nobody says; each is therefore accompanied by a one-element all-reduce of `inner`, which is
// over when all ranks have come. The link's time counts from there: from this rank's own start it would be too short when another rank is
// late, and from the end of the data's own move it would be too long by that.
c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link);

}  // namespace firkin
