// A group of ranks and the collectives that Firkin needs, over c10d.
//
//   ProcessGroup group = connect();  // under torchrun, mpirun or srun
//   at::Tensor t = ...;
//   all_reduce(group, t);  // t now holds the sum over the ranks
//
// Every rank must call the same collectives in the same order. One thread at a time may use a group; its companions and its Connections
// may each be used by a thread of their own.
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
  std::optional<c10::Device> device = std::nullopt;                        // of this rank; without: see device_for_rank("auto")
  std::chrono::milliseconds timeout = std::chrono::minutes(30);            // of every collective: rank 0 may evaluate alone for that long
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);  // of connect() and its like; never longer than `timeout`
  std::optional<ModelledLink> link = std::nullopt;                         // collectives take the time that they would take over this one
};

// What a wait is for, so that wait() can tell when two ranks wait for each other in different wrapped modules (see note_step()).
struct WaitPlace {
  int64_t wrapper = 0;  // the same number on every rank, used for one wrapped module of the group only: Connections::number() is one
  int64_t step = 0;  // of the wrapped module: the collective cannot complete before every rank has begun this step; -1: it belongs to none
  std::string name;  // completes "in step 3 of ...", such as "module A"
};

class ConnectionPool;  // of src/comm, as is
class GroupState;

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
  std::optional<WaitPlace> place = std::nullopt;     // of waits through this handle
};

// A collective under way.
using Work = c10::intrusive_ptr<c10d::Work>;

// Meets the other ranks at info.master_address:master_port (rank 0 listens there, unless a launcher does) and forms a group with them.
//
// Groups never collide: ranks may form several through one meeting point, in the same order on every rank, and none meets what an earlier
// attempt has left there. Whichever ranks are started again, all of them or those of one node: they meet the others as soon as these have
// lost the old group and call this again.
//
// First of all this rank's device becomes the current one (use_device()), before anything is allocated on another.
//
// Throws RuntimeError, at the latest two seconds after options.rendezvous_timeout, when that fails. It names the ranks that have not
// arrived, or have arrived and did not connect, as far as the meeting point can be reached. Throws InputError for an unknown backend, for a
// device that is not here, and for nccl where it cannot be: it needs a GPU for every rank.
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
// Where its backend for the CPU is not gloo, or there is none, as in init_process_group("nccl"), a Gloo for Firkin's own messages is
// connected through the group's store. (That was run with groups without any backend; with NCCL's it has not been run.) options.timeout:
// the one that the group was made with; options.backend has no meaning, and without options.device that of this thread is meant where the
// group has a backend for GPUs. Throws RuntimeError as connect() does. Collective.
ProcessGroup adopt_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const GroupOptions& options);

// The same ranks over connections of their own, so that a small message need not wait for the large ones that are under way in `group`.
// The index-th such set is formed at the first call with this index, which is collective, and kept with the group; use it no longer than
// the group. All fail together: when one is lost, so are the group and the others. Over a modelled link each has that link's rate and
// latency, and a queue of its own. Tensors on the CPU go over a Gloo of its own; those on a device as well, unless the group has another
// backend for the device, NCCL say: that one is shared, since a communicator takes memory of the GPU. Throws RuntimeError as connect()
// does.
ProcessGroup companion(const ProcessGroup& group, int64_t index = 0);

// A set of connections as companion()'s, lent to one user at a time. Move-only. Destruction, which waits for nothing and is not collective,
// gives the set back: nothing may be under way in it then. Where something may be, abandon() it first.
class Connections {
 public:
  Connections(Connections&& other) noexcept;
  Connections& operator=(Connections&& other) noexcept;
  ~Connections();

  const ProcessGroup& group() const { return group_; }
  // How many sets were taken of this group and its companions before: the same on every rank, and never given twice.
  int64_t number() const { return number_; }
  // Nobody gets this set any more: something of a broken step may still be under way in it. It stays open as long as the group.
  void abandon();

 private:
  friend Connections take_connections(const ProcessGroup& group);
  Connections() = default;
  void end();

  ProcessGroup group_;
  c10::intrusive_ptr<c10d::ProcessGroup> parent_;  // whose backends for devices are shared
  std::shared_ptr<ConnectionPool> pool_;
  int64_t index_ = 0;
  int64_t number_ = 0;
};

// The first set that is free on every rank, or a new one: two users of one group never share connections. Collective, over `group`. Throws
// RuntimeError as connect() does, GroupError when the group is lost.
Connections take_connections(const ProcessGroup& group);

// Whether the group has a backend for tensors on such devices.
bool can_carry(const ProcessGroup& group, c10::DeviceType device);

// Starts summing `tensor` (contiguous, the same shape and dtype on every rank) over the ranks, in place.
// The tensor must stay alive, and its content is undefined, until wait() has returned. Throws GroupError when the group is lost.
Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor);

// Starts replacing `tensor` by that of rank `root`; otherwise as start_all_reduce().
Work start_broadcast(const ProcessGroup& group, at::Tensor tensor, int root);

// Starts replacing `bytes` (kByte, contiguous, on the CPU, of the same length on every rank) by the bitwise OR over all ranks, in
// ceil(log2 W) hops: what ranks have to agree on. Otherwise as start_all_reduce(). Lengths that differ are an error that names both. For
// connections of a companion or of Connections only: its messages are not told apart from those of c10d's own send and recv.
Work start_or(const ProcessGroup& group, at::Tensor bytes);

// Waits for a collective that was started through `group`. The calling thread blocks; with NCCL only the device's current stream does, and
// errors are those that are known by then.
//
// what: completes the sentence "rank 1 (gpu07) did not reach ...", such as "bucket 3 of step 17"; called only after a failure.
// Throws GroupError when the collective failed, timed out, or another rank has given up; that rank is heard of within about a second.
// Finding out who is missing then takes less than four seconds. After a throw the backend may use the tensor until its own timeout.
// With group.place, ranks that have stepped wrapped modules in different orders, and so wait for each other, all throw a GroupError that
// names both modules, within about two seconds.
void wait(const ProcessGroup& group, const Work& work, c10::function_ref<std::string()> what);
void wait(const ProcessGroup& group, const Work& work, const char* what);

// This rank has begun a step of a wrapped module: later ones have higher numbers. Cheap (no store, no network), thread-safe. Every step
// must be noted before anything of it is waited for, and one thread should step all wrapped modules of a group: once a second one has noted
// a step here, this rank tells nothing of itself and concludes nothing.
void note_step(const ProcessGroup& group, int64_t wrapper, int64_t step);

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
