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

// Three classes do the work of a wrapped module. GradientPipe (pipe.h) moves gradients into buckets, launches the buckets,
// and receives the sums; it knows nothing of failures and agreements. ModuleFollower (follower.h) has the hooks, and knows
// what the module holds now. StepProtocol says when each does what: it begins and ends steps, lets the ranks agree on the
// outcome, remembers failures, and audits.
//
// A step, on every rank alike, for the strategy `bucketed` from the second step on; W ranks:
//
//   your thread  autograd's threads (CPU: the same)                  transport's threads
//   -----------  ------------------------------------------------    -----------------------
//   backward()-> hook of the first gradient
//                StepProtocol::on_gradient
//                |  StepProtocol::begin_step
//                |  |  GradientPipe::begin          all buckets are empty
//                |  take_checksum_if_due            in every 100th step
//                |  BackwardWatch::attach           to the end of backward, and to its exception
//                |  skip_unreached                  if find_unused_parameters
//                |  GradientPipe::ready             counts; with the last gradient of a parameter:
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
//                |  |  UsedParameters::record_used               v
//                |  |  GradientPipe::send           the rest ->  all-reduces of what is left
//                |  |  StepAgreement::launch ----------------->  24 bytes a rank, OR
//                |  |  ModuleFollower::send_buffers ---------->  rank 0's buffers
//                |  StepProtocol::end_step
//                |  |  StepAgreement::wait <-------------------  what every rank reports
//                |  |  end_as_reported              on every rank alike
//                |  |  |  agree_on_reductions       if a communication hook makes the sums
//                |  |  |  succeed                   no rank has failed
//                |  |  |  |  GradientPipe::receive <-----------  sums
//                |  |  |  |  |  Reduction::finish, adopt: grad() is a view again
//                |  |  |  |  GradientPipe::learn    first step: order of rank 0
//                |  |  |  |  ModuleFollower::receive_buffers <-  buffers
//                |  |  |  |  or renew               other parameters: new hooks, buckets
//                |  |  |  or fail                   a rank failed: no rank keeps a gradient
//                |  FailureRecord::throw_if_failed
//   backward()<- returns, or throws
//   optimizer.step()
//
// With finish_with_backward = false, send and end_step run in the training thread
// (DataParallel::finish_gradient_synchronization()). The strategies `ordered` and `sharded`, and automatic buckets, take
// part in a step only through StepExtension (step_extension.h).
//
// An agreement carries a RankReport of every rank (agreement.h) and, under find_unused_parameters, a bit per parameter.
// Every rank then does the same: succeed; fail, if a rank reports a failure or checksums differ (Audit::difference finds
// the tensor); or renew, if parameters have changed. If a collective fails, the rank loses the group, which the others
// learn from the store (wait() in comm/process_group.h). A rank whose backward threw enters by on_backward_failed, and
// calls send(kFailed), which launches all that the step still lacks, so that no rank waits for a timeout.
//
// One mutex, the protocol's, guards all three classes: autograd may run hooks on several threads (the calling thread on a
// CPU, one per device on GPUs). A hook takes the mutex once per gradient, and never waits for a collective, except the
// first hook of a step under `ordered` and `sharded`. Methods that have the name of one of DataParallel's do what that
// one promises.
class StepProtocol {
 public:
  explicit StepProtocol(StepSetup setup);
  ~StepProtocol();
  StepProtocol(const StepProtocol&) = delete;
  StepProtocol& operator=(const StepProtocol&) = delete;

  // Adds the hooks: from now on a gradient begins a step. The extensions, in the order in which they are called, must live
  // until remove_hooks().
  void add_hooks(std::vector<StepExtension*> extensions);
  void add_hooks_to_others(const std::vector<NamedTensor>& all);
  // Afterwards no hook is called.
  void remove_hooks();

  void finish_gradient_synchronization();
  // caught: the exception in whose handler the program calls this; null outside of handlers.
  void abandon_step(const std::string& reason, const std::exception_ptr& caught);
  // Takes part, without data, in one step of the ranks that have data. Returns false if no rank has.
  bool take_part_without_data();
  bool set_gradient_synchronization(bool on);
  void parameters_changed();
  void audit();
  // An optimiser has stepped parameters of the module. The next step fails if ranks have counted differently, because one
  // of them has then missed a step. optimizer: its address, until forget_audited().
  void count_optimizer_step(const void* optimizer);
  // Audits these tensors too. owner: for forget_audited().
  void add_audited(const void* owner, Audit::Tensors tensors);
  void forget_audited(const void* owner);
  const std::optional<StepFailure>& last_failure() const;
  void observe_steps(std::function<void()> observer);
  DataParallelStats stats() const;

  // ---- For extensions
  // What an extension does between steps begins with one of these. Both wait until a backward that threw has ended its
  // step, and the lock excludes everything else. enter() throws GroupError if the group is lost.
  std::unique_lock<std::recursive_mutex> lock() const;
  std::unique_lock<std::recursive_mutex> enter() const;
  void throw_if_lost() const { failures_.throw_if_lost(); }
  bool is_lost() const { return failures_.is_lost(); }
  bool is_step_open() const { return open_.has_value(); }
  int64_t steps_finished() const { return stats_.steps; }
  const StepSetup& setup() const { return setup_; }
  // Another object once parameters have changed.
  GradientPipe& pipe() { return *pipe_; }
  // For WaitPlaces::Call.
  WaitPlaces& places() { return places_; }
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
    bool has_other_parameters = false;        // the module trains others than the setup's
    bool suspects = false;                    // this rank suspects that it differs from others
    std::optional<std::string> failure = {};  // why this rank fails the step
    std::exception_ptr error = {};            // this rank throws it as it is, in place of a StepError
    std::chrono::steady_clock::time_point wait_started = {};

    // Keeps the first error. null: no error.
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
  bool end_step();
  void end_as_reported();
  std::string difference_between_steps();
  std::optional<StepFailure> agree_on_reductions();
  void succeed();
  void receive_means(bool all);
  void fail(StepFailure failure, std::exception_ptr error);
  void renew();
  void follow(std::vector<NamedTensor> parameters);
  std::string follow_between_steps();
  void prepare_steps(AdoptedGradients adopted);

  mutable std::recursive_mutex mutex_;  // recursive: what add_audited() was given may call this object
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
  bool has_gradient_arrived_ = false;  // since the last step ended, synchronised or not
  OptimizerSteps optimizer_steps_;     // as long as no gradient has arrived
  FailureRecord failures_;
  int64_t step_ = 0;         // failed steps included
  DataParallelStats stats_;  // without what the pipe adds
};

}  // namespace firkin
