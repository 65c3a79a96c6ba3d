#include "firkin/comm/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "group_state.h"
#include "group_store.h"
#include "survey.h"

namespace firkin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitPlace, wrapper, step, name)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitNote, place, begun)

namespace {

using std::chrono::milliseconds;

// How long a survey lasts, in units of GroupOptions::poll_every: by then all ranks that wait have polled, and have left
// their marks. The rank that hosts the store stays longer, because the others get no answer without it.
constexpr double kSurveyPolls = 2;
constexpr double kHostSurveyPolls = 2.8;
constexpr milliseconds kStorePatience{2000};  // for the answer to one question
constexpr milliseconds kTimeoutGrace{1000};   // lets the backend's own timeout come first, because it says more

constexpr const char* kCrossed = "crossed";
constexpr int kRanksPerPoll = 8;

std::string describe(const ProcessGroup& group, const std::optional<Survey>& survey, const std::string& what) {
  const GroupState& state = *group.state;
  if (!survey && state.store_host == StoreHost::kRank0) {
    return fmt::format(
        "{}, on rank 0, does not answer: rank 0 did not reach {}, or has ended because of another rank, which its last line names",
        store_name(group.store), what);
  }
  if (!survey) return fmt::format("{} does not answer: an unknown rank did not reach {}", store_name(group.store), what);
  if (!survey->missing.empty()) return fmt::format("{} did not reach {}", name_ranks(survey->missing), what);
  if (survey->other && survey->other->where != what) {
    return fmt::format("no rank is missing: {} gave up at {}, rank {} at {}", name_ranks({survey->other->who}), survey->other->where,
                       group.rank, what);
  }
  return fmt::format("no rank is missing: all gave up at {}", what);
}

// Records that the group is lost, and throws the message of the first loss.
[[noreturn]] void lose_group_as(const ProcessGroup& group, const std::string& message) {
  // What was queued on the GPU behind the failed collective runs all the same.
  const bool has_nccl_queue = group.state->device_backend == DeviceBackend::kNccl;
  group.state->lose(has_nccl_queue ? message + "; parameters may hold partial sums: load a checkpoint" : message);
  throw GroupError(group.state->loss());
}

std::string note_key(int rank) {
  return fmt::format("at/{}", rank);
}

bool has_begun(const WaitNote& rank, const WaitPlace& place) {
  if (place.step < 0) return true;  // the wait belongs to no step
  const auto found = rank.begun.find(place.wrapper);
  return found != rank.begun.end() && found->second >= place.step;
}

std::string describe_crossed(int rank, const WaitPlace& place, int other_rank, const WaitPlace& other_place) {
  if (other_rank < rank) return describe_crossed(other_rank, other_place, rank, place);
  return fmt::format(
      "rank {} waits in step {} of {}, rank {} in step {} of {}: every rank must step wrapped modules in the same order (after a failed "
      "forward, call abandon_step())",
      rank, place.step, place.name, other_rank, other_place.step, other_place.name);
}

std::string find_crossed(c10d::Store& store, int rank, int size, const WaitNote& ours, int64_t turn) {
  const int64_t most = std::min<int64_t>(kRanksPerPoll, size);
  for (int64_t i = 0; i <= most; ++i) {
    const int other = i == most ? 0 : static_cast<int>((rank + 1 + turn * kRanksPerPoll + i) % size);
    if (other == rank || !store.check({note_key(other)})) continue;
    const auto note = parse_wait_note(store.get_to_str(note_key(other)));
    if (note && are_crossed(ours, *note)) return describe_crossed(rank, ours.place, other, note->place);
  }
  return "";
}

// Whether this rank's wait cannot end, because a rank has given up, or because this rank and another wait for each
// other: see
// Note [Crossed waits] in group_state.h. note: where this rank waits, which the first poll writes to the store; none:
// looks
// only for ranks that have given up. turn: the number of polls that this wait has made before. Each poll reads the
// notes of a few ranks.
bool is_in_vain(c10d::Store& store, int rank, int size, const std::optional<WaitNote>& note, int64_t turn) {
  if (note && turn == 0) store.set(note_key(rank), to_text(*note));
  if (someone_failed(store)) return true;
  const std::string crossed = note ? find_crossed(store, rank, size, *note, turn) : "";
  if (!crossed.empty()) store.set(kCrossed, crossed);  // before the marks, so that a rank which finds a mark finds it
  return !crossed.empty();
}

// Loses the group, because a collective of this rank has failed at `what` ("an all-reduce"). First finds out which
// ranks are missing, within the time that wait() promises (see survey.h). backend_text: the backend's error; empty if
// another rank gave up first. backend: its name in the message.
[[noreturn]] void lose_group(const ProcessGroup& group, const std::string& what, const std::string& backend_text,
                             const char* backend = "Gloo") {
  throw_if_lost(group);  // this failure follows from the first
  GroupState& state = *group.state;
  // Leaves this rank's mark, so that it does not count as missing, and reads the message of a rank that has found
  // crossed waits.
  const auto crossed = state.store.ask(kStorePatience, [rank = group.rank, what](c10d::Store& asked) {
    set_mark(asked, rank, what);  // at once, because the others wait for it
    std::string message = asked.check({kCrossed}) ? asked.get_to_str(kCrossed) : "";
    if (!message.empty()) set_mark(asked, rank, message);
    return message;
  });
  if (crossed && !crossed->empty()) lose_group_as(group, *crossed);
  const double polls = state.store_host == StoreHost::kThisRank ? kHostSurveyPolls : kSurveyPolls;
  const auto window = std::chrono::duration_cast<milliseconds>(polls * state.options.poll_every);
  const auto survey = survey_ranks(state.store, {.rank = group.rank, .size = group.size, .where = what, .window = window});
  std::string message = describe(group, survey, what);
  if (!backend_text.empty()) message += fmt::format(" [{}: {}]", backend, shorten_backend_text(backend_text));
  lose_group_as(group, message);
}

// Whether the work completes within `limit`. If not, sets `error` to what failed, or to the fact that it has not
// completed.
bool completes(const Work& work, milliseconds limit, std::string& error) {
  try {
    work->wait(limit);
    return true;
  } catch (const std::exception& thrown) {
    error = thrown.what();
    return false;
  }
}

// A collective of NCCL. wait() does not pass a timeout on: with one, PyTorch 2.13's NCCL would block the calling
// thread, and could abort the communicator. Wraps the work of any backend that is called nccl, so that it does not
// matter what Firkin was built with.
class StreamWork final : public c10d::Work {
 public:
  explicit StreamWork(firkin::Work inner) : inner_(std::move(inner)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(milliseconds /*timeout*/) override { return inner_->wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }

 private:
  firkin::Work inner_;
};

// Starts a collective directly on the tensor's backend. PyTorch's dispatcher would add a few microseconds per call.
template <typename Start>
Work start_on(const ProcessGroup& group, c10::DeviceType device, Start start) {
  throw_if_lost(group);
  const auto backend = group.c10d->getBackend(device);
  Work work = start(*backend);
  if (device == c10::DeviceType::CPU || backend->getBackendName() != "nccl") return work;
  return c10::make_intrusive<StreamWork>(std::move(work));
}

// Options of a c10d collective, with the timeout of this handle.
template <typename Options>
Options with_timeout(const ProcessGroup& group) {
  Options options;
  if (group.timeout) options.timeout = *group.timeout;
  return options;
}

}  // namespace

std::string shorten_backend_text(const std::string& text) {
  static const std::regex kSourcePlace(R"(^\[[^\]]*/[^\]]*:[0-9]+\] )");  // leaves an address in brackets, "[::1]:1234"
  std::string line = std::regex_replace(text.substr(0, text.find('\n')), kSourcePlace, "");
  for (const char* advice : {"This may indicate", "This is typically caused"}) line = line.substr(0, line.find(advice));
  return line.substr(0, line.find_last_not_of(". ") + 1);  // npos + 1 is 0: nothing is left of dots alone
}

void throw_if_lost(const ProcessGroup& group) {
  if (group.state->is_lost()) throw GroupError(group.state->loss());
}

void give_up(const ProcessGroup& group, const std::string& what) {
  throw_if_lost(group);
  leave_mark(group.state->store, group.rank, what);
  lose_group_as(group, what);
}

std::string to_text(const WaitNote& note) {
  return dump_json(note);
}

std::optional<WaitNote> parse_wait_note(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<WaitNote>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

bool are_crossed(const WaitNote& one, const WaitNote& other) {
  return one.place.wrapper != other.place.wrapper && !has_begun(one, other.place) && !has_begun(other, one.place);
}

bool can_carry(const ProcessGroup& group, c10::DeviceType device) {
  const std::vector<c10::Device> devices = group.c10d->getDeviceTypes();
  return std::ranges::any_of(devices, [device](const c10::Device& each) { return each.type() == device; });
}

bool carries_by_gloo(const ProcessGroup& group, c10::DeviceType device) {
  return group.c10d->getBackend(device)->getBackendName() == "gloo";
}

Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  const auto options = with_timeout<c10d::AllreduceOptions>(group);
  return start_on(group, tensors[0].device().type(), [&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
}

Work start_broadcast(const ProcessGroup& group, at::Tensor tensor, int root) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  auto options = with_timeout<c10d::BroadcastOptions>(group);
  options.rootRank = root;
  return start_on(group, tensors[0].device().type(), [&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
}

Work start_all_to_all(const ProcessGroup& group, at::Tensor output, at::Tensor input, std::vector<int64_t> from, std::vector<int64_t> to) {
  const auto options = with_timeout<c10d::AllToAllOptions>(group);
  return start_on(group, input.device().type(),
                  [&](c10d::Backend& backend) { return backend.alltoall_base(output, input, from, to, options); });
}

Work start_reduce_scatter(const ProcessGroup& group, at::Tensor output, at::Tensor input) {
  const auto options = with_timeout<c10d::ReduceScatterOptions>(group);
  return start_on(group, input.device().type(),
                  [&](c10d::Backend& backend) { return backend._reduce_scatter_base(output, input, options); });
}

Work start_all_gather(const ProcessGroup& group, at::Tensor output, at::Tensor input) {
  const auto options = with_timeout<c10d::AllgatherOptions>(group);
  return start_on(group, input.device().type(), [&](c10d::Backend& backend) { return backend._allgather_base(output, input, options); });
}

Work start_all_gather_rows(const ProcessGroup& group, const at::Tensor& output, at::Tensor input) {
  std::vector<std::vector<at::Tensor>> rows{output.unbind(0)};
  std::vector<at::Tensor> inputs{std::move(input)};
  const auto options = with_timeout<c10d::AllgatherOptions>(group);
  return start_on(group, output.device().type(), [&](c10d::Backend& backend) { return backend.allgather(rows, inputs, options); });
}

void wait(const ProcessGroup& group, const Work& work, c10::function_ref<std::string()> what) {
  std::string error;
  if (dynamic_cast<const StreamWork*>(work.get()) != nullptr) {
    if (completes(work, kNoTimeout, error)) return;
    lose_group(group, what(), error, "NCCL");
  }
  const milliseconds timeout = group.timeout.value_or(group.state->options.timeout);
  const milliseconds limit = timeout + kTimeoutGrace;
  int64_t polls = 0;
  std::set<int> ended;  // local ranks whose processes had ended at the last poll
  for (milliseconds waited{0}; waited < limit;) {
    const milliseconds slice =
        group.state->is_lost() ? milliseconds(1) : std::min(std::max(milliseconds(1), group.state->options.poll_every), limit - waited);
    if (completes(work, slice, error)) return;
    if (work->isCompleted()) {
      if (completes(work, kNoTimeout, error)) return;  // it has completed well since
      lose_group(group, what(), error);
    }
    waited += slice;
    throw_if_lost(group);
    std::optional<WaitNote> note;
    if (const auto begun = group.state->steps_begun(); begun && group.place) note = WaitNote{*group.place, *begun};
    const auto poll = [rank = group.rank, size = group.size, note, turn = polls++](c10d::Store& asked) {
      return is_in_vain(asked, rank, size, note, turn);
    };
    const auto in_vain = group.state->store.ask(kStorePatience, poll);
    if (in_vain.value_or(false)) lose_group(group, what(), "");
    if (!group.place) continue;  // outside of steps, a rank may have done its part and ended
    // Within a step, every rank takes part to the end. What a rank had sent when it ended arrives within one more
    // slice.
    const std::set<int> ended_before = std::exchange(ended, group.state->ended_nearby(group.size));
    if (std::ranges::any_of(ended, [&](int rank) { return ended_before.contains(rank); })) lose_group(group, what(), "");
  }
  lose_group(group, what(), "not complete after " + format_seconds(static_cast<double>(limit.count()) / 1000));
}

void record_step(const ProcessGroup& group, int64_t wrapper, int64_t step, const void* caller) {
  group.state->record_step(wrapper, step, caller);
}

void wait(const ProcessGroup& group, const Work& work, const char* what) {
  wait(group, work, [what] { return std::string(what); });
}

void all_reduce(const ProcessGroup& group, at::Tensor tensor) {
  wait(group, start_all_reduce(group, std::move(tensor)), "an all-reduce");
}

void broadcast(const ProcessGroup& group, std::vector<at::Tensor> tensors, int root) {
  for (at::Tensor& tensor : tensors) wait(group, start_broadcast(group, std::move(tensor), root), "a broadcast");
}

void barrier(const ProcessGroup& group) {
  const auto options = with_timeout<c10d::BarrierOptions>(group);
  wait(group, start_on(group, c10::DeviceType::CPU, [&](c10d::Backend& backend) { return backend.barrier(options); }), "the barrier");
}

std::vector<std::vector<double>> all_gather(const ProcessGroup& group, const std::vector<double>& values) {
  return gather_rows(group, values);
}

}  // namespace firkin
