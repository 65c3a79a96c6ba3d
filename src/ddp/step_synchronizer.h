// The course of a synchronised step, whatever carries its gradients: it begins with the first gradient, ends on all ranks together, and
// ends well on all of them or on none.
#pragma once

#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backward_watch.h"
#include "buffer_broadcast.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/parameter_hooks.h"
#include "step_agreement.h"
#include "synchronizer.h"

namespace firkin {

struct SynchronizerSetup {
  ProcessGroup group;    // of the gradients
  ProcessGroup control;  // of all else: the same, or its companion where gradients are under way when the step ends
  DataParallelOptions options;
  std::vector<NamedTensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<int64_t> ready_order;
};

// A step, on every rank alike:
//   1. begin_gradients(), at the first gradient;
//   2. gradient_ready() for every gradient;
//   3. once backward is over: send_gradients(), then the agreement and the buffers are launched, and all are under way together;
//   4. the agreement tells whether a rank failed. If so: drop_gradients(), and every rank throws. If not: receive_gradients().
// A rank that fails takes part to the end, so that the others need not wait for a timeout. What cannot be taken part in (a collective
// failed) loses the group: from then on everything throws.
//
// One mutex guards all of it: autograd may run hooks on several threads.
class StepSynchronizer : public Synchronizer {
 public:
  void finish() final;
  void abandon(const std::string& reason) final;
  bool take_part_without_data() final;
  bool set_gradient_synchronization(bool on) final;
  const std::optional<StepFailure>& last_failure() const final;

 protected:
  explicit StepSynchronizer(SynchronizerSetup setup);
  // Last in the constructor of what derives from this: from now on gradients are reported.
  void install_hooks();
  // First in its destructor.
  void remove_hooks() { hooks_.reset(); }

  virtual void begin_gradients(int64_t step) = 0;
  // What it throws comes out of backward(), and the step fails.
  virtual void gradient_ready(size_t parameter) = 0;
  // Sends what is not sent yet. Where state is not kWithData, what the parameters hold is of no interest. Returns what is wrong with a
  // gradient of this rank (it is sparse, say): then everything is sent all the same, and the step fails.
  virtual std::exception_ptr send_gradients(RankState state) = 0;
  // The sums arrive, and are the parameters' gradients, or some are left to arrive later. No rank has failed, and some rank has data.
  virtual void receive_gradients(const StepAgreement& agreement) = 0;
  // Some rank has failed, or none has data: waits for what is under way.
  virtual void drop_gradients() = 0;
  // After receive_gradients(), when nothing of the step is under way any more but what may arrive later. May be collective; what it throws
  // loses the group.
  virtual void step_succeeded(const StepAgreement& /*agreement*/) {}
  // A gradient was accumulated on this rank only. What it throws comes out of backward().
  virtual void gradient_accumulated(size_t /*parameter*/) {}
  // What is awaited now, for errors: "bucket 3 (...)"; empty when it is the agreement.
  virtual std::string place() const = 0;
  // Backward is over on this rank; called from within it.
  virtual void backward_ended() {}
  // The gradients arrive by themselves among autograd's final callbacks.
  virtual bool arrives_by_callback() const { return false; }
  // Gradients that come now are of this object's own making.
  virtual bool ignores_gradients() const { return false; }

  // Whether this rank's backward, or an earlier one whose gradient was kept, gave the parameter a gradient.
  virtual bool has_gradient(size_t parameter) const { return setup_.parameters[parameter].tensor.grad().defined(); }

  // The sentence "rank 1 did not reach ..." goes on with this.
  std::string where() const;
  void forget_all_gradients();
  // What this rank owes the others of this step it cannot give any more. Throws GroupError.
  [[noreturn]] void lose_group(const std::exception& error);
  void throw_if_lost() const;
  // First in what a program may call after backward() threw, before the mutex is taken: what follows from that has happened then.
  void settle() const { watch_.settle(); }
  bool is_step_open() const { return open_.has_value(); }
  const SynchronizerSetup& setup() const { return setup_; }
  int64_t steps_finished() const { return steps_finished_; }
  double exposed_wait_s() const { return exposed_wait_s_; }

  mutable std::mutex mutex_;

 private:
  struct OpenStep {
    bool is_backward_over = false;
    std::optional<std::string> failure;  // this rank's
    std::exception_ptr error;            // the same, where it is to come out of the step as it is
  };

  void on_gradient(size_t parameter);
  void on_backward_ended();
  void on_backward_failed(const std::string& reason);
  void begin_step();
  void send(RankState state);
  void complete();
  void succeed();
  void fail(int first_failed);
  void note_missing_gradients();
  void lose_unfinished_step();
  void throw_if_failed() const;

  SynchronizerSetup setup_;
  StepAgreement agreement_;
  BufferBroadcast buffers_;
  BackwardWatch watch_;
  std::vector<bool> used_;  // by this rank, in the step that ends

  bool synchronizes_ = true;
  std::optional<OpenStep> open_;
  bool has_unreported_failure_ = false;  // a step failed since finish() was called last
  std::optional<StepFailure> last_failure_;
  bool has_gradient_since_failure_ = false;
  std::exception_ptr last_error_;    // of this rank, in a step that failed
  std::optional<std::string> lost_;  // why the group is of no use any more
  int64_t step_ = 0;                 // failed ones count
  int64_t steps_finished_ = 0;
  std::chrono::steady_clock::time_point wait_started_;
  double exposed_wait_s_ = 0;
  std::unique_ptr<ParameterHooks> hooks_;
};

}  // namespace firkin
