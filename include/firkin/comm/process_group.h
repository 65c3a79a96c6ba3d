// A group of ranks and the collectives Firkin needs, over c10d.
//
//   ProcessGroup group = connect();  // under torchrun, mpirun or srun
//   at::Tensor t = ...;
//   all_reduce(group, t);  // t now holds the sum over the ranks
//
// Every rank must call the same collectives in the same order. One thread at a time may use a group; its
// Connections may each be used by their own thread.
//
// If a collective fails, the group is lost: GroupError (base/error.h) names the missing ranks on every surviving rank,
// and later collectives throw the same. End the process then: its launcher has to start all ranks anew.
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

struct GroupOptions {
  // What carries GPU tensors, the same on all ranks: "gloo", through CPU memory; "nccl", in full "cpu:gloo,cuda:nccl";
  // or "auto", which is nccl if every rank has it and a GPU of its own, otherwise gloo. CPU tensors always use Gloo,
  // and so do Firkin's own messages: agreements, orders, figures.
  std::string backend = "auto";
  std::optional<c10::Device> device = std::nullopt;  // this rank's; default: device_for_rank("auto")
  // For each collective. The default is long enough for rank 0 to evaluate alone.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // For forming the group; at most `timeout`.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  // After how long connect() prints on standard error which ranks it waits for; then it prints this every minute.
  std::chrono::milliseconds report_after = std::chrono::seconds(10);
  // How often a waiting rank asks the store whether another has given up.
  std::chrono::milliseconds poll_every = std::chrono::seconds(1);
  std::optional<ModelledLink> link = std::nullopt;  // makes collectives take the time they would take over this link
};

// What a wait is for. wait() uses it to detect that two ranks wait for each other in different wrapped modules (see
// record_step()).
struct WaitPlace {
  // Identifies the wrapped module among those of the group, alike on every rank: Connections::number(), for example.
  int64_t wrapper = 0;
  int64_t step = 0;  // of the wrapped module: every rank must begin it before the collective can complete; -1: none
  std::string name;  // completes "in step 3 of ...", for example "module A"
};

class GroupState;  // internal, in src/comm

// A handle: copies refer to the same group. Created only by connect(), make_process_group() and adopt_process_group().
struct ProcessGroup {
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> c10d;
  // For collectives through this handle; default: GroupOptions::timeout.
  std::optional<std::chrono::milliseconds> timeout;
  std::shared_ptr<GroupState> state;              // shared by all handles
  std::string link;                               // describe(GroupOptions::link); empty: no modelled link
  int64_t link_world = 0;                         // ranks that the link is modelled for
  c10::Device device = c10::kCPU;                 // where this rank's module and batches are
  std::string backend = "gloo";                   // or "cpu:gloo,cuda:nccl"
  std::optional<WaitPlace> place = std::nullopt;  // for waits through this handle

  // A single rank without a modelled link: it has nothing to send.
  bool is_alone() const { return size == 1 && link.empty(); }

  // The world size that collectives are timed for: the modelled link's, if there is one.
  int64_t world() const { return link.empty() ? size : link_world; }
};

// A collective in flight.
using Work = c10::intrusive_ptr<c10d::Work>;

// Meets the other ranks at info.master_address:master_port (rank 0 listens there, unless a launcher does) and forms a
// group.
//
// Ranks may form several groups through one meeting point, in the same order on every rank. The meeting point may
// outlive the ranks, like the store of torchrun's agents: what an earlier start of the ranks has left there does no
// harm. A rank that is started again alone meets nobody, and throws when its time is over. If rank 0 listens, it does
// so as long as one of its groups exists: keep one until the next is formed.
//
// Makes this rank's device current (use_device()) first, so that nothing is allocated on another.
//
// Throws RuntimeError at most two seconds after options.rendezvous_timeout, naming the ranks that have not arrived, or
// arrived but did not connect, as far as the meeting point can be reached. Throws InputError for an unknown backend, an
// unavailable device, and for nccl without a GPU for every rank.
//
// From then on this process ignores SIGPIPE, unless the program handles it: the backend writes to sockets that a dead
// rank has closed.
ProcessGroup connect(const RankInfo& info, const GroupOptions& options);

// The same, with the rank from the launcher's environment (rank_info_from_environment()). Throws InputError explaining
// how to start the program if there was no launcher.
ProcessGroup connect(const GroupOptions& options = {});

// Forms a group through a store all ranks share already; threads of one process share a c10d::HashStore. Otherwise like
// connect(). All ranks count as being on this machine when GPUs are assigned.
ProcessGroup make_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const GroupOptions& options);

// Wraps an existing group, for example PyTorch's from Python. Firkin uses its connections, so the group's own
// collectives and Firkin's must come in one order on every rank. If the group's CPU backend is not Gloo, or missing as
// after init_process_group("nccl"), a Gloo for Firkin's own messages is connected through the group's store. (Tested
// with groups without any backend, not with NCCL's.) options.timeout must be the one that the group was made with.
// options.backend is ignored. The default of options.device is this thread's device if the group has a backend for
// GPUs. Collective. Throws RuntimeError like connect().
ProcessGroup adopt_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const GroupOptions& options);

// The same ranks over a separate set of connections, lent to one user at a time: a small message need not wait behind
// large ones in the group's. All sets fail together: if one is lost, so are the group and the others. Over a modelled
// link each has the link's rate and latency and its own queue. CPU tensors use a separate Gloo, and so do device
// tensors, unless the group has another backend for the device: NCCL is shared, because a communicator takes GPU
// memory.
//
// The destructor gives the set back. It waits for nothing and is not collective. Nothing may be in flight in the set
// then; if something may be, call abandon() first.
class Connections {
 public:
  Connections(Connections&& other) = default;
  ~Connections();

  const ProcessGroup& group() const { return group_; }
  // How many sets were taken from the group before this one: the same on every rank, and never used again.
  int64_t number() const { return number_; }
  // Gives the set to nobody again, because something of a broken step may still be in flight in it. The set stays open
  // as long as the group.
  void abandon();

 private:
  friend Connections take_connections(const ProcessGroup& group);
  Connections() = default;

  ProcessGroup group_;
  c10::intrusive_ptr<c10d::ProcessGroup> parent_;  // its device backends are shared
  int64_t number_ = 0;
};

// The first set that is free on every rank, or a new one: two users of one group never share connections. Collective
// over `group`. Throws RuntimeError like connect(), GroupError if the group is lost.
Connections take_connections(const ProcessGroup& group);

// Whether the group has a backend for tensors on such devices; and whether that is Gloo.
bool can_carry(const ProcessGroup& group, c10::DeviceType device);
bool carries_by_gloo(const ProcessGroup& group, c10::DeviceType device);

// Starts summing `tensor` (contiguous, the same shape and dtype on every rank) over the ranks, in place. The tensor
// must stay alive, and its content is undefined, until wait() returns. Throws GroupError if the group is lost.
Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor);

// Starts replacing `tensor` by rank `root`'s; otherwise like start_all_reduce().
Work start_broadcast(const ProcessGroup& group, at::Tensor tensor, int root);

// Starts sending slice j of `input` to rank j, for every j; slice j of `output` becomes what rank j sent here. Both
// contiguous, 1-d; they must not overlap. from, to: elements of each slice of `output` and of `input`, by rank; if
// empty, all slices of both have the same length on every rank. Otherwise like start_all_reduce().
Work start_all_to_all(const ProcessGroup& group, at::Tensor output, at::Tensor input, std::vector<int64_t> from = {},
                      std::vector<int64_t> to = {});

// Starts making `output` the sum, over the ranks, of the slice of their `input` that is this rank's. `input` has the
// world size times the length of `output`, which may be this rank's slice of `input`; the other slices are undefined
// afterwards. Otherwise like start_all_to_all().
Work start_reduce_scatter(const ProcessGroup& group, at::Tensor output, at::Tensor input);

// Starts filling slice j of `output` with rank j's `input`, for every j. `output` has the world size times the length
// of `input`, which may be this rank's slice of `output`. Otherwise like start_all_to_all().
Work start_all_gather(const ProcessGroup& group, at::Tensor output, at::Tensor input);

// The same into the rows of `output`: as many rows as ranks, each contiguous and of input's length. Rows may lie apart.
// Not available over a modelled link.
Work start_all_gather_rows(const ProcessGroup& group, const at::Tensor& output, at::Tensor input);

// Starts replacing `bytes` (kByte, contiguous, on the CPU, of equal length on every rank) by the bitwise OR over all
// ranks, in ceil(log2 W) hops per 65,520 bytes: this is how ranks agree. Otherwise like start_all_reduce(). If lengths
// differ, throws an error that names both. Only over Connections, because its messages look like those of c10d's own
// send and recv.
Work start_or(const ProcessGroup& group, at::Tensor bytes);

// Waits for a collective started through `group`. Blocks the calling thread; with NCCL only the device's current
// stream, and reports the errors known by then.
//
// what: completes the sentence "rank 1 (gpu07) did not reach ...", for example "bucket 3 of step 17"; called only after
// a failure. Throws GroupError if the collective failed, timed out, or another rank gave up, which is noticed within
// GroupOptions::poll_every. Finding out who is missing then takes less than three times that and 1.3 s. After a throw
// the backend may use the tensor until its own timeout. With group.place, ranks that step wrapped modules in different
// orders, and so wait for each other, all throw a GroupError naming both modules within about twice poll_every.
void wait(const ProcessGroup& group, const Work& work, c10::function_ref<std::string()> what);
void wait(const ProcessGroup& group, const Work& work, const char* what);

// Records that this rank has begun a step of a wrapped module; later steps have higher numbers. Record every step
// before waiting for anything of it, and step all wrapped modules of a group from one thread: once a second thread has
// recorded a step, this rank does not look for crossed waits any more. caller: an address that identifies the thread
// that has called backward(), if one of autograd's threads records the step for it. Cheap, without store and network.
// Thread-safe.
void record_step(const ProcessGroup& group, int64_t wrapper, int64_t step, const void* caller = nullptr);

// Gives up the group because this rank has failed. The others notice within about a second instead of after their
// timeouts, and their errors name this rank and `what`. Throws GroupError(what).
[[noreturn]] void give_up(const ProcessGroup& group, const std::string& what);

// Blocking collectives, in place. Throw GroupError like wait().
void all_reduce(const ProcessGroup& group, at::Tensor tensor);
void broadcast(const ProcessGroup& group, std::vector<at::Tensor> tensors, int root = 0);
void barrier(const ProcessGroup& group);

// Gathers the same number of values from every rank; returns one list per rank, on every rank.
std::vector<std::vector<double>> all_gather(const ProcessGroup& group, const std::vector<double>& values);

}  // namespace firkin
