// Forms groups: finds the store, gathers the ranks there, and connects them. Whatever uses the store runs with a
// deadline on a thread of its own, because a store whose host is stopped never answers.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "bounded_store.h"
#include "device_time.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/comm/device.h"
#include "firkin/comm/rank_info.h"
#include "gathering.h"
#include "group_state.h"
#include "group_store.h"
#include "survey.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

using std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kStoreGrace{500};    // how long after the timeout the store may answer
constexpr milliseconds kConnectSlice{250};  // from one poll for a rank that has given up to the next
constexpr milliseconds kConnectGrace{500};  // for connecting, if the last rank has arrived just in time
constexpr milliseconds kListenerPatience{400};
constexpr milliseconds kLongestTimeout = std::chrono::hours(24 * 365);  // longer ones overflow clocks
// A host that has just started may not be known yet.
constexpr milliseconds kNamePatience{10'000};
constexpr milliseconds kReconnectPause{100};
constexpr milliseconds kSurveyWindow{400};  // with kSurveyGrace, kConnectGrace and kConnectSlice: two seconds

// The group that this rank is about to form with the others.
struct Meeting {
  int rank = 0;
  int size = 1;
  std::string place;  // " at 127.0.0.1:29500", or nothing
  StoreHost store_host = StoreHost::kElsewhere;
  GroupOptions options;
  c10::Device device = c10::kCPU;
  DeviceBackend wanted = DeviceBackend::kGloo;
  c10::intrusive_ptr<c10d::ProcessGroup> connected = nullptr;  // a group whose connections are used
  Clock::time_point started = Clock::now();
  std::shared_ptr<WaitReport> report =
      std::make_shared<WaitReport>(fmt::format("rank {} of {}{}", rank, size, place), options.report_after);

  milliseconds timeout() const { return std::min(options.rendezvous_timeout, options.timeout); }
  milliseconds time_left(milliseconds grace) const {
    const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - started);
    return std::max(milliseconds(1), timeout() + grace - passed);
  }
  std::string limit() const { return format_seconds(static_cast<double>(timeout().count()) / 1000); }
};

std::string cannot_meet(const Meeting& meeting, std::string_view why) {
  return fmt::format("rank {} cannot meet the others{}: {}", meeting.rank, meeting.place, why);
}

// Runs call(), which uses the store, within the meeting's timeout. for_whom: what the report of a long wait names; null
// if the call itself reports. Throws RuntimeError if the store fails or does not answer.
template <typename Call>
auto meet(const Meeting& meeting, Call call, const char* for_whom = nullptr) {
  const char* const store = meeting.store_host == StoreHost::kRank0 ? "the store there, on rank 0," : "the store there";
  auto result = start_detached(std::move(call));
  const auto until = Clock::now() + meeting.time_left(kStoreGrace);
  while (result.wait_until(std::min(until, Clock::now() + kConnectSlice)) != std::future_status::ready) {
    if (Clock::now() >= until) {
      throw RuntimeError(cannot_meet(meeting, fmt::format("{} does not answer within {}", store, meeting.limit())));
    }
    if (for_whom != nullptr) meeting.report->report_if_due([for_whom] { return std::string(for_whom); });
  }
  try {
    return result.get();
  } catch (const std::exception& error) {
    throw RuntimeError(cannot_meet(meeting, fmt::format("{} failed: {}", store, shorten_backend_text(error.what()))));
  }
}

std::string have_not_arrived(const std::vector<NamedRank>& absent) {
  return fmt::format("{} {} not arrived", name_ranks(absent), absent.size() == 1 ? "has" : "have");
}

[[noreturn]] void fail_to_form(const Meeting& meeting, const std::string& reason) {
  throw RuntimeError(
      fmt::format("rank {} cannot form a group of {}{} within {}: {}", meeting.rank, meeting.size, meeting.place, meeting.limit(), reason));
}

// Why the group cannot be formed, as far as the ranks' marks show it.
std::string find_reason(const std::optional<Survey>& survey) {
  if (!survey) return "the store does not answer";
  std::vector<NamedRank> absent;
  std::ranges::copy_if(survey->missing, std::back_inserter(absent), &std::string::empty, &NamedRank::host);
  if (!absent.empty()) return have_not_arrived(absent);
  if (!survey->missing.empty()) return fmt::format("{} arrived but did not connect", name_ranks(survey->missing));
  if (survey->other) return fmt::format("{} gave up", name_ranks({survey->other->who}));
  return "connecting failed";
}

// Names the ranks that have not arrived, or have arrived and not connected, by the marks in the group's store.
// backend_text: Gloo's error, if any. Throws InputError if ranks contradict each other.
[[noreturn]] void fail_to_form(const Meeting& meeting, BoundedStore& store, const std::string& backend_text) {
  // Read before the survey: once all ranks have left their marks, the store's host may end.
  const auto contradiction =
      store.ask(kStoreGrace, [](c10d::Store& asked) { return asked.check({kContradiction}) ? asked.get_to_str(kContradiction) : ""; });
  const auto survey = survey_ranks(store, {.rank = meeting.rank, .size = meeting.size, .where = "the rendezvous", .window = kSurveyWindow});
  if (contradiction && !contradiction->empty()) throw InputError(cannot_meet(meeting, *contradiction));
  std::string reason = find_reason(survey);
  if (!backend_text.empty()) reason += fmt::format(" [Gloo: {}]", shorten_backend_text(backend_text));
  fail_to_form(meeting, reason);
}

// A Gloo for this rank, connected to those of the other ranks. Throws RuntimeError that names the ranks that have not
// arrived, or have arrived and not connected.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const Meeting& meeting, const c10::intrusive_ptr<c10d::Store>& group_store) {
  auto connecting = start_detached([store = group_store, rank = meeting.rank, size = meeting.size, address = store_address(group_store),
                                    timeout = meeting.options.timeout] { return make_gloo_backend(store, rank, size, address, timeout); });
  const auto until = Clock::now() + meeting.time_left(kConnectGrace);
  std::optional<BoundedStore> listener;
  while (connecting.wait_for(kConnectSlice) != std::future_status::ready) {
    // Through another connection to the store, because Gloo may be waiting on the first, and holds it meanwhile.
    if (!listener) {
      auto clone = BoundedStore(group_store).ask(kListenerPatience, [](c10d::Store& store) { return store.clone(); });
      listener.emplace(clone.value_or(group_store));
    }
    meeting.report->report_if_due([] { return std::string("the others to connect"); });
    const bool has_failed = listener->ask(kListenerPatience, someone_failed).value_or(false);
    if (has_failed || Clock::now() >= until) fail_to_form(meeting, *listener, "");
  }
  try {
    return connecting.get();
  } catch (const std::exception& error) {
    BoundedStore store(group_store);
    fail_to_form(meeting, store, error.what());
  }
}

bool has_gloo(c10d::ProcessGroup& group) {
  try {
    return group.getBackend(c10::kCPU)->getBackendName() == "gloo";
  } catch (const std::exception&) {  // the group is for GPUs alone
    return false;
  }
}

// The Gloo that carries CPU tensors, over the meeting's link if it has one: the adopted group's, or a new one.
c10::intrusive_ptr<c10d::Backend> find_gloo(const Meeting& meeting, const Store& group_store) {
  const bool is_adopted = meeting.connected && has_gloo(*meeting.connected);
  auto gloo = is_adopted ? meeting.connected->getBackend(c10::kCPU) : connect_gloo(meeting, group_store);
  return meeting.options.link ? make_linked_backend(std::move(gloo), *meeting.options.link) : gloo;
}

// The group with `gloo` and with what carries a GPU's tensors, which may be `gloo` as well.
c10::intrusive_ptr<LosableGroup> make_group(const Meeting& meeting, const Store& store, const c10::intrusive_ptr<c10d::Backend>& gloo,
                                            const std::shared_ptr<GroupState>& state) {
  using Type = c10d::ProcessGroup::BackendType;
  auto group = c10::make_intrusive<LosableGroup>(store, meeting.rank, meeting.size, state);
  const std::optional<ModelledLink>& link = meeting.options.link;
  if (link && !meeting.device.is_cpu()) {
    group->setBackend(meeting.device.type(), Type::CUSTOM,
                      make_linked_device(*link, meeting.device, make_device_timer(meeting.device, kLinkTimer, link->sms)));
  }
  if (meeting.connected) {
    group->set_backends(gloo, *meeting.connected);
    return group;
  }
  group->setBackend(c10::kCPU, Type::GLOO, gloo);
  group->setDefaultBackend(Type::GLOO);
  if (state->device_backend == DeviceBackend::kGloo) {
    if (!link || meeting.device.is_cpu()) group->setBackend(c10::kCUDA, Type::GLOO, gloo);
    return group;
  }
  const auto nccl_store = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
  group->setBackend(c10::kCUDA, Type::NCCL, make_nccl_backend(nccl_store, meeting.rank, meeting.size, meeting.options.timeout));
  group->owns_nccl = true;
  return group;
}

// The backend for GPU tensors; all ranks decide alike. Throws InputError if nccl was asked for and is not possible.
DeviceBackend agree_on_backend(const Meeting& meeting, const Gathering& gathering) {
  if (meeting.wanted == DeviceBackend::kGloo || meeting.connected) return meeting.wanted;
  const std::string& problem = gathering.why_not_nccl;
  if (problem.empty()) return DeviceBackend::kNccl;
  if (meeting.wanted == DeviceBackend::kBest) return DeviceBackend::kGloo;
  BoundedStore store(gathering.store);
  leave_mark(store, meeting.rank, "the rendezvous");  // for ranks with other options, which go on
  throw InputError(fmt::format("backend {}: {}; expected a GPU for every rank, or gloo", meeting.options.backend, problem));
}

ProcessGroup form_group(const Meeting& meeting, const Store& store) {
  Arrival arrival{.rank = meeting.rank, .size = meeting.size, .report = meeting.report};
  if (meeting.wanted != DeviceBackend::kGloo && !meeting.connected) {
    arrival.gpu = gpu_identity(meeting.device);
    arrival.gpu_name = meeting.device.str();
  }
  const auto until = meeting.started + meeting.timeout();
  const Gathering gathering = meet(meeting, [store, arrival, until] { return gather_ranks(store, arrival, until); });
  if (!gathering.store) {
    fail_to_form(meeting, gathering.is_left_out ? "the others have formed one without this process; after a failure start all ranks again"
                                                : have_not_arrived({NamedRank{.rank = 0}}));
  }
  BoundedStore marks(gathering.store);
  if (!gathering.complete) fail_to_form(meeting, marks, "");
  const DeviceBackend backend = agree_on_backend(meeting, gathering);
  const auto state = std::make_shared<GroupState>(gathering.store, meeting.store_host, meeting.options, backend);
  const std::optional<ModelledLink>& link = meeting.options.link;
  return {.rank = meeting.rank,
          .size = meeting.size,
          .store = gathering.store,
          .c10d = make_group(meeting, gathering.store, find_gloo(meeting, gathering.store), state),
          .timeout = std::nullopt,
          .state = state,
          .link = link ? describe(*link) : "",
          .link_world = link ? link->world : 0,
          .device = meeting.device,
          .backend = backend == DeviceBackend::kNccl ? kGlooAndNccl : "gloo"};
}

GroupOptions with_checked_timeouts(GroupOptions options) {
  for (auto [timeout, name] : {std::pair{&options.timeout, "timeout"}, {&options.rendezvous_timeout, "rendezvous_timeout"}}) {
    if (*timeout <= milliseconds(0)) throw InputError(fmt::format("{} {} ms: expected more than 0", name, timeout->count()));
    *timeout = std::min(*timeout, kLongestTimeout);
  }
  return options;
}

// Throws InputError if the host's name cannot be resolved. LibTorch 2.13's store would look for it until the timeout.
void check_address(const Meeting& meeting, const std::string& address) {
  const auto resolve = [host = address] {
    addrinfo* found = nullptr;
    const int code = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (found != nullptr) freeaddrinfo(found);
    return code;
  };
  const auto until = Clock::now() + std::min(kNamePatience, meeting.time_left(milliseconds(0)));
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    const int code = call_within(left, resolve).value_or(EAI_AGAIN);
    if (code == 0) return;
    if (Clock::now() + kReconnectPause >= until) {
      throw InputError(cannot_meet(meeting, fmt::format("{}; expected MASTER_ADDR to be the host of rank 0", gai_strerror(code))));
    }
    std::this_thread::sleep_for(kReconnectPause);
  }
}

// The device of this rank: options.device, or the GPU of its local rank if there is one. Throws InputError for a GPU
// that is not here.
c10::Device choose_device(const GroupOptions& options, int local_rank) {
  if (!options.device) return device_for_rank("auto", local_rank);
  if (!options.device->is_cuda()) return *options.device;
  const c10::Device of_rank = device_for_rank("cuda", local_rank);
  if (!options.device->has_index()) return of_rank;
  if (options.device->index() >= device_count()) {
    throw InputError(fmt::format("device {}: this process sees {} GPUs; expected a lower number", options.device->str(), device_count()));
  }
  return *options.device;
}

// The common beginning of connect() and make_process_group(). Makes this rank's device the current one.
Meeting begin_meeting(int rank, int size, int local_rank, const GroupOptions& asked, const std::string& place = "") {
  const GroupOptions options = with_checked_timeouts(asked);
  const c10::Device device = choose_device(options, local_rank);
  check_link(options.link, size, device);
  const DeviceBackend wanted = choose_backend(options, device);
  use_device(device);
  return {.rank = rank, .size = size, .place = place, .options = options, .device = device, .wanted = wanted};
}

// A launcher may run the store itself: torchrun's agent does, and so does --ranks.
StoreHost store_host(int rank) {
  const char* by_launcher = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  if (by_launcher != nullptr && std::string_view(by_launcher) == "True") return StoreHost::kElsewhere;
  return rank == 0 ? StoreHost::kThisRank : StoreHost::kRank0;
}

}  // namespace

ProcessGroup connect(const RankInfo& info, const GroupOptions& options) {
  const std::string place = fmt::format(" at {}:{}", info.master_address, info.master_port);
  Meeting meeting = begin_meeting(info.rank, info.world_size, info.local_rank, options, place);
  meeting.store_host = store_host(info.rank);
  check_address(meeting, info.master_address);
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(info.master_port);
  store_options.isServer = meeting.store_host == StoreHost::kThisRank;
  store_options.multiTenant = true;  // this process may be in several groups of one meeting point
  // LibTorch 2.13 counts this timeout in whole seconds, and takes 0 for no limit.
  store_options.timeout = std::max<milliseconds>(meeting.time_left(milliseconds(0)), std::chrono::seconds(1));
  store_options.waitWorkers = false;
  const auto open_store = [address = info.master_address, store_options]() -> Store {
    return c10::make_intrusive<c10d::TCPStore>(address, store_options);
  };
  const char* for_whom = meeting.store_host == StoreHost::kThisRank ? "this host to answer at that address"
                         : meeting.store_host == StoreHost::kRank0  ? "rank 0"
                                                                    : "the launcher's store";
  return form_group(meeting, meet(meeting, open_store, for_whom));
}

c10::intrusive_ptr<LosableGroup> connect_again(const ProcessGroup& group, const std::string& part) {
  const GroupState& state = *group.state;
  const Meeting meeting{.rank = group.rank, .size = group.size, .place = "", .store_host = state.store_host, .options = state.options};
  const auto store = c10::make_intrusive<c10d::PrefixStore>(part, group.c10d->getStore());
  meet(
      meeting,
      [store, rank = group.rank] {
        announce_rank(*store, rank);
        return true;
      },
      "the store");
  auto set = c10::make_intrusive<LosableGroup>(store, group.rank, group.size, group.state);
  set->set_backends(find_gloo(meeting, store), *group.c10d);
  return set;
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

ProcessGroup make_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const GroupOptions& options) {
  return form_group(begin_meeting(rank, size, /*local_rank=*/rank, options), store);
}

ProcessGroup adopt_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const GroupOptions& options) {
  const std::vector<c10::Device> served = group->getDeviceTypes();
  const bool serves_gpus = std::ranges::any_of(served, [](c10::Device device) { return device.is_cuda(); });
  const bool has_gpus = serves_gpus && device_count() > 0;
  const c10::Device current = has_gpus ? c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice() : c10::Device(c10::kCPU);
  const bool is_nccl = serves_gpus && group->getBackend(c10::kCUDA)->getBackendName() == "nccl";
  const Store store = group->getStore();
  const c10::Device device = options.device.value_or(current);
  check_link(options.link, group->getSize(), device);
  return form_group({.rank = group->getRank(),
                     .size = group->getSize(),
                     .place = "",
                     .store_host = store_host(group->getRank()),
                     .options = with_checked_timeouts(options),
                     .device = device,
                     .wanted = is_nccl ? DeviceBackend::kNccl : DeviceBackend::kGloo,
                     .connected = group},
                    store);
}

}  // namespace firkin
