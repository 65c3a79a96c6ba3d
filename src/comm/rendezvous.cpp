// connect() and make_process_group(): the store, everybody's arrival there, and then the connections between the ranks. Each step runs with
// a deadline on a thread of its own, because a store whose host is stopped answers nothing, for ever.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "backend_text.h"
#include "bounded_call.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/comm/device.h"
#include "firkin/comm/process_group.h"
#include "firkin/comm/rank_info.h"
#include "gloo_backend.h"
#include "group_failure.h"
#include "group_options.h"
#include "group_state.h"
#include "group_store.h"
#include "linked_backend.h"
#include "lost_group.h"
#include "missing_ranks.h"
#include "nccl_backend.h"
#include "shared_gpus.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kConnectSlice{250};  // of waiting, between two looks whether another rank has given up
constexpr milliseconds kLongestPause{100};  // between two questions whether all have arrived
constexpr milliseconds kStoreGrace{500};    // for an answer of the store after the timeout
constexpr milliseconds kConnectGrace{500};  // for the connections, when the last rank arrived just in time
constexpr milliseconds kListenerPatience{400};
constexpr milliseconds kSurveyWindow{400};  // with kSurveyGrace, kConnectGrace and kConnectSlice: two seconds

using Store = c10::intrusive_ptr<c10d::Store>;

// What this rank wants to be part of.
struct Meeting {
  int rank = 0;
  int size = 1;
  std::string address;  // of the meeting point, for the choice of the network interface
  std::string place;    // " at 127.0.0.1:29500", or nothing
  StoreHost store_host = StoreHost::kElsewhere;
  GroupOptions options;
  c10::Device device = c10::kCPU;
  DeviceBackend wanted = DeviceBackend::kGloo;
  c10::intrusive_ptr<c10d::ProcessGroup> connected = nullptr;  // one whose connections are used
  Clock::time_point started = Clock::now();

  milliseconds time_left(milliseconds grace) const {
    const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - started);
    return std::max(milliseconds(1), options.timeout + grace - passed);
  }
  std::string limit() const { return format_seconds(static_cast<double>(options.timeout.count()) / 1000); }
};

[[noreturn]] void fail_to_meet(const Meeting& meeting, std::string_view why) {
  throw RuntimeError(fmt::format("rank {} cannot meet the others{}: {}", meeting.rank, meeting.place, why));
}

// call() within the meeting's timeout. Throws RuntimeError when the store, of which the call makes use, fails or does not answer.
template <typename Call>
auto meet(const Meeting& meeting, Call call) {
  std::optional<std::invoke_result_t<Call&>> result;
  try {
    result = call_within(meeting.time_left(kStoreGrace), std::move(call));
  } catch (const std::exception& error) {
    fail_to_meet(meeting, shorten_backend_text(error.what()));
  }
  if (!result) fail_to_meet(meeting, fmt::format("the store there does not answer within {}", meeting.limit()));
  return std::move(*result);
}

// Leaves this rank's name in its group's part of the store. gpu: which this rank has for NCCL; empty: none.
Store arrive(const Store& store, int rank, int size, const std::string& gpu, const std::string& gpu_name) {
  Store group_store = next_group_store(store, rank);
  announce_host(*group_store, rank);
  if (!gpu.empty()) claim_gpu(*group_store, gpu, gpu_name);
  if (group_store->add("arrived", 1) == size) group_store->set("all_arrived", "");
  return group_store;
}

// Whether all ranks arrive until then; ends early when one of them gives up. Asks again and again: LibTorch prints a warning for every
// wait() of a store that ends without the key.
bool await_all(c10d::Store& store, Clock::time_point until) {
  milliseconds pause{1};
  while (!store.check({"all_arrived"})) {
    if (Clock::now() >= until || store.check({"failed/any"})) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

// Why the group cannot be formed, as far as the marks of the ranks tell.
std::string find_reason(const std::optional<Survey>& survey) {
  if (!survey) return "the store does not answer";
  std::vector<NamedRank> absent;
  std::copy_if(survey->missing.begin(), survey->missing.end(), std::back_inserter(absent),
               [](const NamedRank& r) { return r.host.empty(); });
  if (!absent.empty()) return fmt::format("{} {} not arrived", name_ranks(absent), absent.size() == 1 ? "has" : "have");
  if (!survey->missing.empty()) return fmt::format("{} arrived but did not connect", name_ranks(survey->missing));
  if (survey->other) return fmt::format("{} gave up", name_ranks({survey->other->who}));
  return "connecting failed";
}

// Throws RuntimeError that says who is to blame. backend_text: Gloo's error, if any.
[[noreturn]] void fail_to_form(const Meeting& meeting, BoundedStore& store, const std::string& backend_text) {
  const auto survey = survey_ranks(store, {.rank = meeting.rank, .size = meeting.size, .where = "the rendezvous", .window = kSurveyWindow});
  std::string reason = find_reason(survey);
  if (!backend_text.empty()) reason += fmt::format(" [Gloo: {}]", shorten_backend_text(backend_text));
  throw RuntimeError(
      fmt::format("rank {} cannot form a group of {}{} within {}: {}", meeting.rank, meeting.size, meeting.place, meeting.limit(), reason));
}

// The backend, connected to those of the other ranks.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const Meeting& meeting, const Store& group_store) {
  auto connecting = start_detached([store = group_store, rank = meeting.rank, size = meeting.size, address = meeting.address,
                                    timeout = meeting.options.timeout] { return make_gloo_backend(store, rank, size, address, timeout); });
  const auto until = Clock::now() + meeting.time_left(kConnectGrace);
  std::optional<BoundedStore> listener;
  std::string error;
  while (connecting.wait_for(kConnectSlice) != std::future_status::ready) {
    // A connection of its own: Gloo may be waiting on ours, and holds it meanwhile.
    if (!listener) {
      auto clone = BoundedStore(group_store).ask(kListenerPatience, [](c10d::Store& store) { return store.clone(); });
      listener.emplace(clone.value_or(group_store));
    }
    if (Clock::now() >= until || someone_failed(*listener, kListenerPatience)) fail_to_form(meeting, *listener, "");
  }
  try {
    return connecting.get();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  BoundedStore store(group_store);
  fail_to_form(meeting, store, error);
}

// All ranks are there. What carries the CPU's tensors, and what carries a GPU's, which may be the same.
c10::intrusive_ptr<LosableGroup> connect_group(const Meeting& meeting, const Store& store, const std::shared_ptr<GroupState>& state) {
  using Type = c10d::ProcessGroup::BackendType;
  auto group = c10::make_intrusive<LosableGroup>(store, meeting.rank, meeting.size, state);
  auto gloo = connect_gloo(meeting, store);
  if (meeting.options.link) gloo = make_linked_backend(std::move(gloo), *meeting.options.link);
  group->setBackend(c10::kCPU, Type::GLOO, gloo);
  group->setDefaultBackend(Type::GLOO);
  if (state->device_backend == DeviceBackend::kGloo) {
    group->setBackend(c10::kCUDA, Type::GLOO, gloo);
    return group;
  }
  const auto nccl_store = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
  group->setBackend(c10::kCUDA, Type::NCCL, make_nccl_backend(nccl_store, meeting.rank, meeting.size, meeting.options.timeout));
  group->owns_nccl = true;
  return group;
}

// The connections of a group of another maker.
c10::intrusive_ptr<LosableGroup> take_connections(const Meeting& meeting, const Store& store, const std::shared_ptr<GroupState>& state) {
  using Type = c10d::ProcessGroup::BackendType;
  auto group = c10::make_intrusive<LosableGroup>(store, meeting.rank, meeting.size, state);
  auto gloo = meeting.connected->getBackend(c10::kCPU);
  group->setBoundDeviceId(meeting.connected->getBoundDeviceId());  // setBackend() tells it to the backends
  if (meeting.options.link) gloo = make_linked_backend(std::move(gloo), *meeting.options.link);
  group->setBackend(c10::kCPU, Type::GLOO, gloo);
  group->setDefaultBackend(Type::GLOO);
  for (const c10::Device& device : meeting.connected->getDeviceTypes()) {
    if (device.is_cpu()) continue;
    auto backend = meeting.connected->getBackend(device.type());
    const std::string name = backend->getBackendName();
    if (name == "gloo") {
      group->setBackend(device.type(), Type::GLOO, gloo);
    } else {
      group->setBackend(device.type(), name == "nccl" ? Type::NCCL : Type::CUSTOM, std::move(backend));
    }
  }
  return group;
}

// Known to all ranks alike. Throws InputError where nccl was asked for and cannot be.
DeviceBackend agree_on_backend(const Meeting& meeting, const Store& group_store) {
  if (meeting.wanted == DeviceBackend::kGloo || meeting.connected) return meeting.wanted;
  const std::string problem = meet(meeting, [group_store, size = meeting.size] { return why_not_nccl(*group_store, size); });
  if (problem.empty()) return DeviceBackend::kNccl;
  if (meeting.wanted == DeviceBackend::kBest) return DeviceBackend::kGloo;
  BoundedStore store(group_store);
  leave_mark(store, meeting.rank, "the rendezvous");  // for ranks that asked for something else
  throw InputError(fmt::format("backend {}: {}; expected a GPU for every rank, or gloo", meeting.options.backend, problem));
}

ProcessGroup form_group(const Meeting& meeting, const Store& store) {
  const bool may_be_nccl = meeting.wanted != DeviceBackend::kGloo && !meeting.connected;
  const std::string gpu = may_be_nccl ? gpu_identity(meeting.device) : "";
  const Store group_store = meet(meeting, [store, rank = meeting.rank, size = meeting.size, gpu, name = meeting.device.str()] {
    return arrive(store, rank, size, gpu, name);
  });
  const auto until = meeting.started + meeting.options.timeout;
  const bool all_here = meet(meeting, [group_store, until] { return await_all(*group_store, until); });
  if (!all_here) {
    BoundedStore marks(group_store);
    fail_to_form(meeting, marks, "");
  }
  const DeviceBackend backend = agree_on_backend(meeting, group_store);
  const auto state =
      std::make_shared<GroupState>(group_store, store_name(store), meeting.store_host, meeting.address, meeting.options, backend);
  const std::optional<ModelledLink>& link = meeting.options.link;
  return {.rank = meeting.rank,
          .size = meeting.size,
          .store = group_store,
          .c10d = meeting.connected ? take_connections(meeting, group_store, state) : connect_group(meeting, group_store, state),
          .timeout = std::nullopt,
          .state = state,
          .link = link ? describe(*link) : "",
          .device = meeting.device,
          .backend = backend_name(backend)};
}

void check_link(const std::optional<ModelledLink>& link, int size) {
  if (link && link->world < size)
    throw InputError(fmt::format("a modelled link for {} ranks: expected at least the group's {}", link->world, size));
}

// What both ways to a group begin with: the device is the current one afterwards.
Meeting begin_meeting(int rank, int size, int local_rank, const GroupOptions& options) {
  check_link(options.link, size);
  const c10::Device device = choose_device(options, local_rank);
  const DeviceBackend wanted = choose_backend(options, device);
  use_device(device);
  return {.rank = rank, .size = size, .address = "127.0.0.1", .place = "", .options = options, .device = device, .wanted = wanted};
}

StoreHost store_host(int rank) {
  if (launcher_hosts_store()) return StoreHost::kElsewhere;
  return rank == 0 ? StoreHost::kThisRank : StoreHost::kRank0;
}

}  // namespace

ProcessGroup connect(const RankInfo& info, const GroupOptions& options) {
  Meeting meeting = begin_meeting(info.rank, info.world_size, info.local_rank, options);
  meeting.address = info.master_address;
  meeting.place = fmt::format(" at {}:{}", info.master_address, info.master_port);
  meeting.store_host = store_host(info.rank);
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(info.master_port);
  store_options.isServer = meeting.store_host == StoreHost::kThisRank;
  store_options.multiTenant = true;  // this process may be in several groups of one meeting point
  // LibTorch counts this one in whole seconds, and takes 0 for no limit.
  store_options.timeout = std::max<milliseconds>(options.timeout, std::chrono::seconds(1));
  store_options.waitWorkers = false;
  const Store store = meet(meeting, [address = info.master_address, store_options]() -> Store {
    return c10::make_intrusive<c10d::TCPStore>(address, store_options);
  });
  return form_group(meeting, store);
}

ProcessGroup connect(const GroupOptions& options) {
  const std::optional<RankInfo> info = rank_info_from_environment();
  if (!info) {
    throw InputError(
        "no launcher started this process: RANK and WORLD_SIZE are not set; start it with mpirun or srun, or with torchrun "
        "--nproc-per-node 2 --no-python PROGRAM");
  }
  return connect(*info, options);
}

ProcessGroup companion(const ProcessGroup& group) {
  throw_if_lost(group);
  auto& losable = dynamic_cast<LosableGroup&>(*group.c10d);
  if (!losable.companion) {
    const GroupState& state = *group.state;
    const Meeting meeting{.rank = group.rank,
                          .size = group.size,
                          .address = state.address,
                          .place = "",
                          .store_host = state.store_host,
                          .options = {.timeout = state.timeout, .link = state.link}};
    const Store store = c10::make_intrusive<c10d::PrefixStore>("companion", group.store);
    meet(meeting, [store, rank = group.rank] {
      announce_host(*store, rank);
      return true;
    });
    losable.companion = connect_group(meeting, store, group.state);
  }
  ProcessGroup result = group;
  result.c10d = losable.companion;
  return result;
}

ProcessGroup make_process_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options) {
  return form_group(begin_meeting(rank, size, /*local_rank=*/rank, options), store);
}

ProcessGroup adopt_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const GroupOptions& options) {
  check_link(options.link, group->getSize());
  std::string name = "none";
  try {
    name = group->getBackend(c10::kCPU)->getBackendName();
  } catch (const std::exception&) {  // of a group for GPUs alone
  }
  if (name != "gloo") throw InputError(fmt::format("a process group with backend {} for the CPU: expected gloo", name));
  const bool has_gpus = group->hasBackendForDeviceType(c10::kCUDA) && device_count() > 0;
  const c10::Device current = has_gpus ? c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice() : c10::Device(c10::kCPU);
  const bool is_nccl = group->hasBackendForDeviceType(c10::kCUDA) && group->getBackend(c10::kCUDA)->getBackendName() == "nccl";
  const Store store = group->getStore();
  return form_group({.rank = group->getRank(),
                     .size = group->getSize(),
                     .address = store_address(store),
                     .place = "",
                     .store_host = store_host(group->getRank()),
                     .options = options,
                     .device = options.device.value_or(current),
                     .wanted = is_nccl ? DeviceBackend::kNccl : DeviceBackend::kGloo,
                     .connected = group},
                    store);
}

}  // namespace firkin
