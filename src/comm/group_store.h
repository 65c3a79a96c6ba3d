// What each rank writes about itself into the group's store: its host and its process.
//
// Keys, below the group's prefix; those of failures are in survey.h, those of waits in group_state.h:
//   host/R     the host of rank R, from its arrival on
//   process/R  its process: on the same machine, other ranks can find out whether it still runs
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

std::string host_name();

// Sets host/R and process/R. Throws c10::Error.
void announce_rank(c10d::Store& store, int rank);

struct LocalProcess {
  std::string number;
  std::string started;  // in the kernel's ticks
};

// The processes of other ranks that run on this machine, by rank. Throws c10::Error.
std::map<int, LocalProcess> processes_nearby(c10d::Store& store, int size);

// Whether the process has ended. Unlike a broken connection, this does not depend on what its children hold open.
bool has_ended(const LocalProcess& process);

// A rank as messages name it.
struct NamedRank {
  int rank = 0;
  std::string host = {};  // empty: the rank never arrived
};

// "the store at 127.0.0.1:29500"; "the store" for one that is not on the network.
std::string store_name(const c10::intrusive_ptr<c10d::Store>& store);

// The store's host; 127.0.0.1 for one that is not on the network.
std::string store_address(const c10::intrusive_ptr<c10d::Store>& store);

// "host/3"
std::string key_of(const char* kind, int rank);

// The key's value; empty if there is none, where the store's get() would wait for the key. Throws c10::Error.
std::string value_of(c10d::Store& store, const std::string& key);

// The ranks below `size` that have no key of this kind, ascending, the first few with their hosts. Throws c10::Error.
std::vector<NamedRank> ranks_without(const char* kind, c10d::Store& store, int size);

// "rank 1 (gpu07)", "ranks 1 (gpu07), 3 (gpu08)"; many ranks are cut short. At least one rank.
std::string name_ranks(const std::vector<NamedRank>& ranks);

}  // namespace firkin
