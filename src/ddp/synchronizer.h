// A synchronised step: it begins with the first gradient and ends on all ranks together, with
// success on all of them or on none.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agreement.h"
#include "audit.h"
#include "backward_watch.h"
#include "firkin/base/error.h"
#include "module_state.h"
#include "step_extension.h"
#include "transport.h"

namespace firkin {

// What a rank remembers of its last step's failure, and of the loss of its group. Not thread-safe.
class FailureRecord {
 public:
  // The failure of the last step.
  const std::optional<StepFailure>& failure() const { return failure_; }
  // own: the exception that this rank's step throws; null: it throws a StepError.
  void note(StepFailure failure, std::exception_ptr own) {
    state_ = own ? State::kThrown : State::kFailed;
    failure_ = std::move(failure);
    own_ = std::move(own);
    is_unreported_ = true;
  }
  // Call it when this rank's own exception leaves backward(), before any handler has seen it.
  void note_own_exception() { state_ = State::kThrown; }
  // Call it for a gradient: from now on, exceptions belong to another step.
  void note_gradient() { state_ = State::kNone; }
  // To be called when a step has ended well.
  void clear() {
    state_ = State::kNone;
    failure_.reset();
    own_ = nullptr;
    handled_ = nullptr;
  }
  // Throws the failure of the last step, if it failed.
  void throw_if_failed() const {
    if (own_) std::rethrow_exception(own_);
    if (failure_) throw StepError(*failure_);
  }
  // Throws the failure of the last step if no call has thrown it yet.
  void report() {
    if (std::exchange(is_unreported_, false)) throw_if_failed();
  }
  void forget_report() { is_unreported_ = false; }

  // Whether a call of abandon_step() is about the last step's failure; handled: the exception in whose handler it comes,
  // or null. If not, another step is to fail: a gradient has come since, or the program has thrown another exception
  // before any. A handler may call abandon_step() several times, also for a failure that it did not cause.
  bool explains(const std::exception_ptr& handled) {
    const bool is_another = handled && !is_error_of_a_step(handled) && handled != handled_;
    note_handler(handled);
    if (state_ == State::kThrown && handled) {
      state_ = State::kFailed;
      return true;
    }
    return (state_ == State::kThrown || state_ == State::kFailed) && !is_another;
  }
  // For such a call within an open step, which it is then about.
  void note_handler(const std::exception_ptr& handled) {
    if (handled) handled_ = handled;
  }
  // Call it when a step has failed because of abandon_step().
  void note_abandoned() { state_ = State::kFailed; }

  bool is_lost() const { return loss_.has_value(); }
  void note_loss(std::string message) { loss_ = std::move(message); }
  void throw_if_lost() const {
    if (loss_) throw GroupError(*loss_);
  }

 private:
  enum class State {
    kNone,    // the last step ended well, or a gradient has come since
    kThrown,  // it failed on this rank too, with an exception that is on its way to a handler
    kFailed,  // it failed
  };

  // Whether Firkin has thrown it from a step that failed on every rank.
  static bool is_error_of_a_step(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const StepError&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  State state_ = State::kNone;
  std::optional<StepFailure> failure_;
  std::exception_ptr own_;
  std::exception_ptr handled_;  // the exception that was being handled when abandon_step() was called last
  bool is_unreported_ = false;
  std::optional<std::string> loss_;
};

// A step, on every rank alike, for the strategy `bucketed` from the second step on; W ranks:
//
//   your thread  autograd's threads (CPU: the same)                  transport's threads
//   -----------  ------------------------------------------------    -----------------------
//   backward()-> hook of the first gradient
//                Synchronizer::on_gradient
//                |  Synchronizer::begin_step
//                |  |  BucketTransport::begin       all buckets empty
//                |  BackwardWatch::attach           to its end and its exception
//                |  Audit::note_first_gradient      checksums, in every 100th step
//                |  Synchronizer::skip_unreached    if find_unused_parameters
//                |  BucketTransport::ready          counts; with the last gradient:
//                |  |  BucketTransport::place       gradient / W into its bucket
//                |  |  BucketTransport::launch_next ---------->  all-reduce of bucket 0
//                                                                |
//                hook of every further gradient                  |
//                Synchronizer::on_gradient                       |
//                |  BucketTransport::ready                       v
//                |  |  place; full, and its turn: launch_next ->  all-reduce of bucket 1
//                                                                |
//                autograd's final callback                       |
//                Synchronizer::on_backward_ended                 |
//                |  Synchronizer::send                           |
//                |  |  ParameterWatch::has_changed  other parameters than before?
//                |  |  note_missing_gradients                    v
//                |  |  BucketTransport::send        the rest ->  all-reduces of what is left
//                |  |  StepAgreement::launch ----------------->  24 bytes a rank, OR
//                |  |  BufferBroadcast::launch --------------->  rank 0's buffers
//                |  Synchronizer::complete
//                |  |  StepAgreement::wait <-------------------  what every rank reports
//                |  |  Synchronizer::finish_comm_hook              results, if options have one
//                |  |  Synchronizer::succeed        no rank has failed
//                |  |  |  BucketTransport::receive <-----------  sums
//                |  |  |  |  wait_for, adopt        grad() is a view again
//                |  |  |  BucketTransport::learn    first step: order of rank 0
//                |  |  |  receive_buffers <-------------------  buffers
//                |  |  or renew                     other parameters: new hooks, buckets
//                |  |  or fail                      a rank failed: gradients none
//                |  throw_if_failed
//   backward()<- returns, or throws
//   optimizer.step()
//
// With finish_with_backward = false, send and complete run in the training thread (finish()). `ordered`, `sharded` and
// automatic buckets see a step only through StepExtension.
//
// An agreement carries a RankReport of every rank (agreement.h) and, under find_unused_parameters, a bit per parameter.
// Every rank then decides alike: succeed; fail, if a rank reports a failure or checksums differ (Audit::explain finds
// the tensor); renew, if parameters changed; lose_group, if a collective failed, which the others learn from the store.
// A rank whose backward or forward threw calls send(kFailed) and sends what is left, so that nobody waits for a
// timeout.
//
// One mutex guards all of it: autograd may run hooks on several threads (the calling thread on a CPU, one per device on
// GPUs). It is taken once per gradient, and a hook never waits for a collective, except the first hook of a step under
// `ordered`. Methods with a name of DataParallel's do what that promises.
class Synchronizer {
 public:
  explicit Synchronizer(StepSetup setup);
  ~Synchronizer();
  Synchronizer(const Synchronizer&) = delete;
  Synchronizer& operator=(const Synchronizer&) = delete;

  // Call both before the first step. The extension must outlive this object.
  void add(StepExtension& extension) { extensions_.push_back(&extension); }
  void install_hooks();
  // Makes a backward that reaches those of these parameters that are not known yet begin a step,
  // which reads the module itself.
  void hook_newcomers(const std::vector<NamedTensor>& all);
  // Call it before an extension is destroyed: nothing is reported afterwards.
  void remove_hooks();

  void finish();
  // handled: the exception whose handler calls it; null outside of handlers.
  void abandon(const std::string& reason, const std::exception_ptr& handled);
  // Takes part, without data, in one step of the ranks that have data. Returns false if no rank has.
  bool take_part_without_data();
  bool set_gradient_synchronization(bool on);
  void parameters_changed();
  void audit();
  // An optimiser has stepped parameters of the module. If optimisers have stepped more often on one rank than on
  // another since they last agreed, a rank has missed a step: an error. optimizer: identifies it, until
  // forget_audited().
  void note_optimizer_step(const void* optimizer);
  // owner: for forget_audited().
  void audit_also(const void* owner, Audit::Tensors tensors);
  void forget_audited(const void* owner);
  const std::optional<StepFailure>& last_failure() const;
  void observe_steps(std::function<void()> observer);
  DataParallelStats stats() const;

  // Extensions begin with one of these whatever they do between steps: it first deals with a backward that threw, and
  // the lock excludes everything else. enter() throws GroupError if the group is lost.
  std::unique_lock<std::recursive_mutex> lock() const;
  std::unique_lock<std::recursive_mutex> enter() const;
  void throw_if_lost() const { failures_.throw_if_lost(); }
  bool is_step_open() const { return open_.has_value(); }
  bool is_lost() const { return failures_.is_lost(); }
  const StepSetup& setup() const { return setup_; }
  BucketTransport& transport() { return *transport_; }
  const BucketTransport& transport() const { return *transport_; }
  int64_t steps_finished() const { return steps_finished_; }
  // Runs work that other ranks wait for. If it throws, the group is lost and GroupError is thrown.
  template <typename Work>
  auto or_lose_group(Work work) {
    try {
      return work();
    } catch (const std::exception& error) {
      lose_group(error);
    }
  }

  // While one lives, this rank waits in a collective that the program has called between steps. Ranks that wait for
  // each other in different calls, or in a call and a step, get an error that names both (comm/group_state.h) well
  // before the timeout.
  class Call {
   public:
    Call(Synchronizer& synchronizer, std::string_view name);  // the same names in the same order on every rank
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Synchronizer& synchronizer_;
    WaitPlace before_;  // for both groups
  };

 private:
  struct OpenStep {
    bool is_backward_over = false;
    bool parameters_changed = false;
    bool suspects = false;               // whether this rank suspects that it differs from others
    std::optional<std::string> failure;  // this rank's
    std::exception_ptr error;            // the same, if the step is to throw it as it is

    // Keeps the first error; null is none.
    void fail_with(const std::exception_ptr& why) {
      if (why == nullptr || error != nullptr) return;
      error = why;
      if (!failure) failure = message_of(why);
    }
  };
  void look_at_module();
  void on_gradient(size_t parameter);
  void on_newcomers_gradient();
  void on_backward_ended();
  void on_backward_failed(const std::string& reason);
  void begin_step();
  static std::string removed_by_hook(const NamedTensor& parameter);
  void skip_unreached();
  void note_first_gradient();
  std::string difference_of_buffers();
  std::string difference_between_steps();
  bool are_gradients_placeholders() const;
  std::vector<NamedTensor> untouched_buffers() const;
  void send(RankState state);
  void check_extensions();
  void note_missing_gradients();
  void complete();
  std::optional<StepFailure> finish_comm_hook();
  void succeed();
  void fail(StepFailure failure, std::exception_ptr error);
  bool is_comm_hook_even();
  [[noreturn]] void lose_group(const std::exception& error);
  void note_loss(const std::string& why);
  void receive_means(bool all);
  void receive_buffers();
  void renew();
  void prepare_steps();
  void train(std::vector<NamedTensor> parameters);
  std::string apply_changes();
  void lose_unfinished_step();
  void forget_all_gradients();
  bool has_gradient(size_t parameter) const;
  // Completes the sentence "rank 1 did not reach ...".
  std::string where() const;

  mutable std::recursive_mutex mutex_;  // what audit_tensors() was given may ask this object
  StepSetup setup_;
  std::vector<StepExtension*> extensions_;
  std::function<void()> observer_;
  AdoptedGradients adopted_;
  std::unique_ptr<BucketTransport> transport_;
  std::optional<StepAgreement> agreement_;
  std::optional<BufferBroadcast> buffers_;  // if they are broadcast
  ParameterWatch parameters_;
  Audit audit_;
  BackwardWatch watch_;
  std::unique_ptr<ParameterHooks> hooks_;
  std::optional<NewcomerHooks> newcomers_;

  bool synchronizes_ = true;
  std::optional<OpenStep> open_;
  // Per parameter.
  std::vector<bool> touched_;  // whether it got a gradient since the last step ended
  std::vector<bool> used_;     // whether it has something to add to the step that ends
  bool is_begun_ = false;      // whether any gradient, synchronised or not, has come since the last step ended
  bool had_data_ = false;      // whether any rank had data in the last step
  // By optimiser: steps since the last step ended, as long as no gradient has come. Null: one that has gone.
  std::map<const void*, uint64_t> optimizer_steps_;
  FailureRecord failures_;
  int64_t step_ = 0;                                   // includes failed steps
  std::map<std::string, int64_t, std::less<>> calls_;  // by the name of a Call: its last one
  int64_t steps_finished_ = 0;
  std::chrono::steady_clock::time_point wait_started_;
  double exposed_wait_s_ = 0;
  std::chrono::steady_clock::time_point began_, ended_;  // the last step
};

}  // namespace firkin
