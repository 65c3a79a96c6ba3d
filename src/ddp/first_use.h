// What the strategies ordered and sharded share: some of a step is still under way when it ends, and modules wait for it in the next
// forward.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "awaiting_modules.h"
#include "synchronizer.h"

namespace firkin {

// Its methods hold the step's lock, but for the extension's own, which are called with it.
class FirstUse : public StepExtension {
 public:
  // synchronizer: must outlive this. unused: what is wrong where nobody has used the gradients of a step.
  FirstUse(Synchronizer& synchronizer, const char* unused) : synchronizer_(synchronizer), unused_(unused) {}

  // As DataParallel's.
  void drain();
  void receive_parameters(const torch::nn::Module& part);
  void add_to(DataParallelStats& stats) const;
  // At the end of a step, before the optimiser's, or between steps: nothing is late afterwards, and the buckets may be replaced.
  virtual void receive_rest();

  void before_comparison() override { receive_all(); }
  void gradient(size_t parameter) override;
  std::exception_ptr objection() const override;
  void dropped() override;
  void renewed() override;

 protected:
  virtual void receive_all() = 0;
  virtual void receive_those(const std::vector<size_t>& parameters) = 0;
  // The step may end without what the bucket brings: every parameter in it is awaited by a module, in every forward.
  virtual bool may_be_late(int64_t bucket) const;

  // For an optimiser's step. Throws RuntimeError within a step of the module.
  std::unique_lock<std::recursive_mutex> enter_after_step() const;
  // A step has ended well.
  void begin_forward();
  // Without waits.
  double since_step_ended_s() const;
  // The earliest of each bucket's parameters.
  std::vector<double> first_use_of_buckets(const std::vector<double>& of_parameters) const;

  Synchronizer& synchronizer_;
  std::optional<AwaitingModules> modules_;
  std::vector<bool> is_late_;  // parameter: it, or its gradient, was on its way when the last step ended
  std::atomic<bool> anything_late_ = false;
  bool steps_are_lost_ = false;                // gradients of the last step came to nobody's use
  std::optional<ForwardListening> listening_;  // of a derived class, which ends it before itself

 private:
  void module_awaits(const torch::nn::Module& module);
  void receive_in_forward(const std::vector<size_t>& parameters);

  const char* unused_;
  std::chrono::steady_clock::time_point step_ended_;
  double forward_wait_s_ = 0;  // since the last step ended
  double last_forward_wait_s_ = 0;
};

}  // namespace firkin
