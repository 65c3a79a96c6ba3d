// How ranks find each other in a store, so that groups never meet what others, or an earlier life of their own ranks, have left there.
//
// A store may outlive ranks: torchrun's agent keeps it over restarts, and a rank that is started again may find the others still in the old
// group. So every group is a generation, with a part of the store of its own:
//   1. Rank 0 opens it, under a number that none had before.
//   2. Every rank that waits arrives there, with a token. Only who is alive now can: the generation is new.
//   3. When all have arrived, rank 0 writes the roster: their tokens.
//   4. Who finds its token in the roster goes on and connects. Who does not (another life of this rank arrived and died) waits for the next
//      generation, and tells those who are connecting that this one will not do: they too begin again.
//
// Keys, below the store's own prefix; G is the number of a generation:
//   firkin/generations     how many were opened
//   firkin/waiting/R       rank R waits for a roster that it is in
//   firkin/G/arrival/R     its token, and what has to be known of it
//   firkin/G/roster
//   firkin/G/superseded    a rank of the roster was started again before all had connected
//   firkin/G/...           the group's own keys
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

// A launcher may run the store itself: torchrun's agent does, and so does --ranks.
bool launcher_hosts_store();

// Tells the lives of a rank apart.
uint64_t this_process();

struct Arrival {
  int rank = 0;
  int size = 1;
  std::string gpu = "";       // what tells the GPU that this rank has for NCCL from all others; empty: none
  std::string gpu_name = "";  // for people, "cuda:0"
  uint64_t process = this_process();
};

struct Gathering {
  bool complete = false;                            // all ranks are there
  c10::intrusive_ptr<c10d::Store> store = nullptr;  // the group's part; null: rank 0 has opened none
  std::string why_not_nccl = "";                    // of a complete one, the same on all ranks; empty: every rank has a GPU of its own
  std::vector<int> absent = {};                     // without a store: the ranks that are not here, rank 0 among them
};

// Waits for the next generation that this rank is in; for an incomplete one until then, or until another rank gives up. Asks the store
// again and again: LibTorch prints a warning for every wait() of a store that ends without the key. Ranks form their groups in the same
// order. Throws c10::Error.
Gathering gather_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Arrival& arrival, std::chrono::steady_clock::time_point until);

// Whether the roster of the group with this part of the store was overtaken. Throws c10::Error.
bool is_superseded(c10d::Store& group_store);

// "the store at 127.0.0.1:29500"; "the store" for one that is not on the network.
std::string store_name(const c10::intrusive_ptr<c10d::Store>& store);

// Its host; 127.0.0.1 for one that is not on the network.
std::string store_address(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace firkin
