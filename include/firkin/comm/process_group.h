// A group of ranks and the collectives that Firkin needs, over c10d.
//
//   ProcessGroup group = connect();  // under torchrun, mpirun or srun
//   at::Tensor t = ...;
//   all_reduce(group, t);  // t now holds the sum over the ranks
//
// Every rank must call the same collectives in the same order. One thread at a time may use a group.
//
// When a collective fails, the group is lost: GroupError (group_error.h) says which ranks are missing, on every rank that is left, and
// all later collectives of the group throw the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/modelled_link.h"
#include "firkin/comm/rank_info.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

// What carries tensors on GPUs is the same on all ranks: "gloo", through the CPU's memory; "nccl", or "cpu:gloo,cuda:nccl", which says the
// same in full; or "auto": nccl where every rank has it and a GPU of its own, otherwise gloo. Tensors on the CPU always go over Gloo, and
// with them all that Firkin itself sends: agreements, orders, figures.
struct GroupOptions {
  std::string backend = "auto";
  std::optional<c10::Device> device = std::nullopt;               // of this rank; without: see device_for_rank("auto")
  std::chrono::milliseconds timeout = std::chrono::seconds(300);  // of every collective and of the rendezvous
  std::optional<ModelledLink> link = std::nullopt;                // collectives take the time that they would take over this one
};

class GroupState;  // of src/comm

// A handle: copies refer to the same group. Only connect(), make_process_group() and adopt_process_group() make one.
struct ProcessGroup {
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> c10d;
  std::optional<std::chrono::milliseconds> timeout;  // of a collective through this handle; without: GroupOptions::timeout
  std::shared_ptr<GroupState> state;                 // of all handles: what is known of a failure
  std::string link;                                  // describe(GroupOptions::link); empty: no modelled link
  c10::Device device = c10::kCPU;                    // of this rank: for its module and its batches
  std::string backend = "gloo";                      // or "cpu:gloo,cuda:nccl"
};

// A collective under way.
using Work = c10::intrusive_ptr<c10d::Work>;

// Meets the other ranks at info.master_address:master_port (rank 0 listens there, unless a launcher does) and forms a group with them.
//
// Groups never collide: ranks may form several through one meeting point, in the same order on every rank, and torchrun's restarted
// ranks never meet what an earlier attempt left in its store.
//
// First of all this rank's device becomes the current one (use_device()), before anything is allocated on another.
//
// Throws RuntimeError, at the latest two seconds after options.timeout, when that fails. It names the ranks that have not arrived, or
// have arrived and did not connect, as far as the meeting point can be reached. Throws InputError for an unknown backend, for a device that
// is not here, and for nccl where it cannot be: it needs a GPU for every rank.
//
// SIGPIPE is ignored in this process from then on, unless the program handles it: the backend writes to sockets that a dead rank has
// closed.
ProcessGroup connect(const RankInfo& info, const GroupOptions& options);

// The same, as the rank that a launcher made of this process (rank_info_from_environment()). Throws InputError, which says how to start the
// program, when no launcher did.
ProcessGroup connect(const GroupOptions& options = {});

// Forms a group through a store that all ranks share already: threads of one process share a c10d::HashStore. Otherwise as connect(); all
// ranks count as being on this machine when GPUs are dealt out.
ProcessGroup make_process_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options);

// A group that exists already, PyTorch's from Python, say: its connections are used, its collectives and ours in one order on every rank.
// options.timeout: of the rendezvous through the group's store, and the one that the group was made with; options.backend has no meaning,
// and without options.device that of this thread is meant where the group has a backend for GPUs. Throws InputError unless its backend for
// the CPU is gloo, as in init_process_group("cpu:gloo,cuda:nccl"); RuntimeError as connect() does. Collective.
ProcessGroup adopt_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const GroupOptions& options);

// The same ranks over connections of their own, so that a small message need not wait for the large ones that are under way in `group`.
// Formed at the first call, which is collective, and kept with the group. Both fail together: when one is lost, so is the other. Over a
// modelled link it has that link's rate and latency, and a queue of its own. Throws RuntimeError as connect() does.
ProcessGroup companion(const ProcessGroup& group);

// Whether the group has a backend for tensors on such devices.
bool can_carry(const ProcessGroup& group, c10::DeviceType device);

// Starts summing `tensor` (contiguous, the same shape and dtype on every rank) over the ranks, in place.
// The tensor must stay alive, and its content is undefined, until wait() has returned. Throws GroupError when the group is lost.
Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor);

// Starts replacing `tensor` by that of rank `root`; otherwise as start_all_reduce().
Work start_broadcast(const ProcessGroup& group, at::Tensor tensor, int root);

// Waits for a collective that was started through `group`. The calling thread blocks; with NCCL only the device's current stream does, and
// errors are those that are known by then.
//
// what: completes the sentence "rank 1 (gpu07) did not reach ...", such as "bucket 3 of step 17"; called only after a failure.
// Throws GroupError when the collective failed, timed out, or another rank has given up; that rank is heard of within about a second.
// Finding out who is missing then takes less than four seconds. After a throw the backend may use the tensor until its own timeout.
void wait(const ProcessGroup& group, const Work& work, c10::function_ref<std::string()> what);
void wait(const ProcessGroup& group, const Work& work, const char* what);

// This rank cannot go on with the group, for a reason of its own: the others hear of it within about a second, instead of waiting for
// their timeouts, and their errors name this rank and `what`. Throws GroupError(what).
[[noreturn]] void give_up(const ProcessGroup& group, const std::string& what);

// Blocking collectives, in place. They throw GroupError as wait() does.
void all_reduce(const ProcessGroup& group, at::Tensor tensor);
void broadcast(const ProcessGroup& group, std::vector<at::Tensor> tensors, int root = 0);
void barrier(const ProcessGroup& group);

// The same number of values from every rank -> one list per rank, on every rank.
std::vector<std::vector<double>> all_gather(const ProcessGroup& group, const std::vector<double>& values);

}  // namespace firkin
