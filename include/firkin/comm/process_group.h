// A group of ranks and the collectives that Firkin needs, over c10d.
//
//   ProcessGroup group = connect(*rank_info_from_environment(), {});
//   at::Tensor t = ...;
//   all_reduce(group, t);  // t now holds the sum over the ranks
//
// Every rank must call the same collectives in the same order. One thread at a time may use a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/rank_info.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

struct GroupOptions {
  std::string backend = "gloo";
  std::chrono::milliseconds timeout = std::chrono::seconds(300);  // of every collective and of the rendezvous
};

// A handle: copies refer to the same group.
struct ProcessGroup {
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> c10d;
  std::optional<std::chrono::milliseconds> timeout;  // of an all-reduce started through this handle; without: GroupOptions::timeout
};

// A collective under way.
using Work = c10::intrusive_ptr<c10d::Work>;

// Meets the other ranks at info.master_address:master_port (rank 0 listens there) and forms a group with them.
// Throws RuntimeError when they do not come within the timeout, InputError for an unknown backend.
ProcessGroup connect(const RankInfo& info, const GroupOptions& options);

// Forms a group through a store that all ranks share already: threads of one process share a c10d::HashStore.
ProcessGroup make_process_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options);

// Starts summing `tensor` (contiguous, the same shape and dtype on every rank) over the ranks, in place.
// The tensor must stay alive, and its content is undefined, until wait() has returned.
Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor);

// Waits for a collective. Throws RuntimeError naming `what` when it failed or timed out.
void wait(const Work& work, const std::string& what);

// Blocking collectives, in place. They throw RuntimeError as wait() does.
void all_reduce(const ProcessGroup& group, at::Tensor tensor);
void broadcast(const ProcessGroup& group, std::vector<at::Tensor> tensors, int root = 0);
void barrier(const ProcessGroup& group);

// The same number of values from every rank -> one list per rank, on every rank.
std::vector<std::vector<double>> all_gather(const ProcessGroup& group, const std::vector<double>& values);

}  // namespace firkin
