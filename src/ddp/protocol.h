// The protocol of a step: it begins with the first gradient and ends on all ranks together, with success on all of them
// or on none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agreement.h"
#include "audit.h"
#include "backward_watch.h"
#include "failure_record.h"
#include "follower.h"
#include "optimizer_steps.h"
#include "pipe.h"
#include "step_extension.h"
#include "step_setup.h"
#include "used_parameters.h"
#include "wait_places.h"

namespace firkin {

// Three classes do the work of a wrapped module. GradientPipe (pipe.h) takes gradients into buckets, buckets onto the
// link, and sums back; it knows nothing of failures and agreements. ModuleFollower (follower.h) has the hooks, and knows
// what the module holds now. StepProtocol says when each does what: a step's begin and end, the agreement of the ranks,
// its outcome, what is remembered of a failure, and the audit.
//
// A step, on every rank alike, for the strategy `bucketed` from the second step on; W ranks:
//
//   your thread  autograd's threads (CPU: the same)                  transport's threads
//   -----------  ------------------------------------------------    -----------------------
//   backward()-> hook of the first gradient
//                StepProtocol::on_gradient
//                |  StepProtocol::begin_step
//                |  |  GradientPipe::begin          all buckets empty
//                |  take_checksum_if_due            checksums, in every 100th step
//                |  BackwardWatch::attach           to its end and its exception
//                |  skip_unreached                  if find_unused_parameters
//                |  GradientPipe::ready             counts; with the last gradient:
//                |  |  place                        gradient / W into its bucket
//                |  |  launch_next: Reduction::start ---------->  all-reduce of bucket 0
//                                                                |
//                hook of every further gradient                  |
//                StepProtocol::on_gradient                       |
//                |  GradientPipe::ready                          v
//                |  |  place; full, and its turn: launch_next ->  all-reduce of bucket 1
//                                                                |
//                autograd's final callback                       |
//                StepProtocol::on_backward_ended                 |
//                |  StepProtocol::send                           |
//                |  |  ModuleFollower::has_other_parameters      |
//                |  |  find_missing_gradients                    v
//                |  |  GradientPipe::send           the rest ->  all-reduces of what is left
//                |  |  StepAgreement::launch ----------------->  24 bytes a rank, OR
//                |  |  ModuleFollower::send_buffers ---------->  rank 0's buffers
//                |  StepProtocol::end_step
//                |  |  StepAgreement::wait <-------------------  what every rank reports
//                |  |  end_as_reported              on every rank alike
//                |  |  |  agree_on_reductions       results of a communication hook
//                |  |  |  succeed                   no rank has failed
//                |  |  |  |  GradientPipe::receive <-----------  sums
//                |  |  |  |  |  Reduction::finish, adopt: grad() is a view again
//                |  |  |  |  GradientPipe::learn    first step: order of rank 0
//                |  |  |  |  ModuleFollower::receive_buffers <-  buffers
//                |  |  |  |  or renew               other parameters: new hooks, buckets
//                |  |  |  or fail                   a rank failed: gradients none
//                |  FailureRecord::throw_if_failed
//   backward()<- returns, or throws
//   optimizer.step()
//
// With finish_with_backward = false, send and complete run in the training thread (finish()). `ordered`, `sharded` and
// automatic buckets see a step only through StepExtension (step_extension.h).
//
// An agreement carries a RankReport of every rank (agreement.h) and, under find_unused_parameters, a bit per parameter.
// Every rank then decides alike: succeed; fail, if a rank reports a failure or checksums differ (Audit::explain finds
// the tensor); renew, if parameters changed; lose_group, if a collective failed, which the others learn from the store
// (wait() in comm/process_group.h). A rank whose backward threw comes by on_backward_failed, and calls send(kFailed),
// which sends what is left, so that nobody waits for a timeout.
//
// One mutex, the protocol's, guards all three: autograd may run hooks on several threads (the calling thread on a CPU,
// one per device on GPUs). It is taken once per gradient, and a hook never waits for a collective, except the first hook
// of a step under `ordered` and `sharded`. Methods with a name of DataParallel's do what that promises.
class StepProtocol {
 public:
  explicit StepProtocol(StepSetup setup);
  ~StepProtocol();
  StepProtocol(const StepProtocol&) = delete;
  StepProtocol& operator=(const StepProtocol&) = delete;

  // Call both before the first step. The extension must live until remove_hooks().
  void add(StepExtension& extension) { extensions_.push_back(&extension); }
  void add_hooks() { follower_.add_hooks(); }
  // Makes a backward that reaches those of these parameters that are not known yet begin a step, which reads the module
  // itself.
  void add_hooks_to_others(const std::vector<NamedTensor>& all);
  // Call it before an extension is destroyed: no hook is called afterwards.
  void remove_hooks();

  void finish_gradient_synchronization();
  // caught: the exception whose handler calls it; null outside of handlers.
  void abandon_step(const std::string& reason, const std::exception_ptr& caught);
  // Takes part, without data, in one step of the ranks that have data. Returns false if no rank has.
  bool take_part_without_data();
  bool set_gradient_synchronization(bool on);
  void parameters_changed();
  void audit();
  // An optimiser has stepped parameters of the module. If optimisers have stepped more often on one rank than on
  // another since they last agreed, a rank has missed a step: an error. optimizer: identifies it, until
  // forget_audited().
  void count_optimizer_step(const void* optimizer);
  // owner: for forget_audited().
  void add_audited(const void* owner, Audit::Tensors tensors);
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
  // Replaced when parameters change.
  GradientPipe& pipe() { return *pipe_; }
  // For WaitPlaces::Call.
  WaitPlaces& places() { return places_; }
  int64_t steps_finished() const { return stats_.steps; }
  // Runs work that other ranks wait for. If it throws, the group is lost and GroupError is thrown.
  template <typename Work>
  auto or_lose_group(Work work) {
    try {
      return work();
    } catch (const std::exception& error) {
      lose_group(error);
    }
  }

 private:
  struct OpenStep {
    bool is_backward_over = false;
    bool has_other_parameters = false;
    bool suspects = false;                    // whether this rank suspects that it differs from others
    std::optional<std::string> failure = {};  // this rank's
    std::exception_ptr error = {};            // the same, if the step is to throw it as it is
    std::chrono::steady_clock::time_point wait_started = {};

    // Keeps the first error; null is none.
    void fail_with(const std::exception_ptr& why) {
      if (why == nullptr || error != nullptr) return;
      error = why;
      if (!failure) failure = message_of(why);
    }
  };

  // ---- From the first gradient to the last (protocol.cpp)
  void on_gradient(size_t parameter);
  void on_other_gradient();
  void on_backward_ended();
  void on_backward_failed(const std::string& reason);
  void begin_step();
  void take_checksum_if_due();
  void skip_unreached();
  void lose_group_if_unfinished();
  // Completes the sentence "rank 1 did not reach ...".
  std::string where() const;
  [[noreturn]] void lose_group(const std::exception& error);
  void set_lost(const std::string& why);

  // ---- The end (step_end.cpp)
  void send(RankState state);
  RankReport report(RankState state) const;
  void read_module();
  void check_extensions();
  void find_missing_gradients(RankState state);
  void end_step();
  void end_as_reported();
  std::string difference_between_steps();
  std::optional<StepFailure> agree_on_reductions();
  bool are_reductions_even();
  void succeed();
  void receive_means(bool all);
  void fail(StepFailure failure, std::exception_ptr error);
  void renew();
  void follow(std::vector<NamedTensor> parameters);
  std::string follow_between_steps();
  void prepare_steps(AdoptedGradients adopted);

  mutable std::recursive_mutex mutex_;  // recursive: what add_audited() was given may ask this object
  StepSetup setup_;
  WaitPlaces places_;
  std::vector<StepExtension*> extensions_;
  std::function<void()> observer_;
  ModuleFollower follower_;
  std::unique_ptr<GradientPipe> pipe_;
  std::optional<StepAgreement> agreement_;
  Audit audit_;
  BackwardWatch watch_;

  bool synchronizes_ = true;
  std::optional<OpenStep> open_;
  UsedParameters used_;
  bool has_gradient_arrived_ = false;  // whether any gradient, synchronised or not, has come since the last step ended
  bool had_data_ = false;              // whether any rank had data in the last step
  OptimizerSteps optimizer_steps_;  // as long as no gradient has come
  FailureRecord failures_;
  int64_t step_ = 0;                                   // includes failed steps
  DataParallelStats stats_;                            // without the pipe's
};

}  // namespace firkin
