// A part of a store for each group, so that groups never meet what others have left there.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

// A launcher may run the store itself: torchrun's agent does, and so does --ranks.
bool launcher_hosts_store();

// The part for this rank's next group: "firkin/RESTART/N", where N is this rank's number of earlier groups on this store, and RESTART
// torchrun's count of restarts where its agent runs the store, which then outlives them; otherwise 0, for a node that has joined later
// counts fewer. The ranks agree, for all form their groups in the same order. Throws c10::Error.
c10::intrusive_ptr<c10d::Store> next_group_store(const c10::intrusive_ptr<c10d::Store>& store, int rank);

// "the store at 127.0.0.1:29500"; "the store" for one that is not on the network.
std::string store_name(const c10::intrusive_ptr<c10d::Store>& store);

// Its host; 127.0.0.1 for one that is not on the network.
std::string store_address(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace firkin
