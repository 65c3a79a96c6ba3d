// What the strategies ordered and sharded share: communication overlaps the next forward. When a step ends, some of its
// buckets are still in flight, and each module waits for those that it needs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "awaiting_modules.h"
#include "comm/device_time.h"
#include "protocol.h"

#include <torch/nn/module.h>

namespace firkin {

// A forward, from the end of one step to the first gradient of the next.
struct ForwardTimes {
  struct Pause {
    DeviceTime from, to;  // equal if there was nothing to wait for
  };
  // First the end of the step. Then a pause for every first await of a module, and for every receive_parameters(). Last
  // the first gradient of the next step. Empty if no forward was observed.
  std::vector<Pause> pauses;
  std::vector<int64_t> first_use;  // by parameter: the pause, as an index

  // By pause: seconds from the end of the step, without the pauses. On a device, waits until it has passed the last
  // one.
  std::vector<double> seconds() const;
};

// The base class of the two strategies. Public methods lock the protocol's mutex; for those of StepExtension the
// protocol has locked it.
class ForwardOverlap : public StepExtension {
 public:
  // protocol, setup: must outlive this. unused: the error's text if nobody has used the gradients of a step.
  ForwardOverlap(StepProtocol& protocol, const StepSetup& setup, const char* unused)
      : protocol_(protocol), setup_(setup), unused_(unused) {}

  // See DataParallel.
  void drain();
  void receive_parameters(const torch::nn::Module& part);
  void add_to(DataParallelStats& stats) const;
  // Receives all buckets that are in flight. Call it between steps, or when a step has ended. Afterwards the buckets
  // may be replaced.
  virtual void receive_rest();

  void before_comparison() override { receive_all(); }
  void check(std::optional<size_t> gradient) override;
  void ended(const StepAgreement& agreement, bool is_good) override;
  void renewed(GradientPipe& pipe) override;

 protected:
  virtual void receive_all() = 0;
  virtual void receive_those(const std::vector<size_t>& parameters) = 0;
  // Whether a step may end before the bucket has arrived: modules await every parameter in it.
  virtual bool may_be_late(int64_t bucket) const;

  // The lock for an optimiser's step. Throws RuntimeError within a step of the module.
  std::unique_lock<std::recursive_mutex> enter_after_step() const;
  // Call it when a step has ended well.
  void begin_forward();
  // Returns the forward since begin_forward().
  ForwardTimes end_forward();
  // By bucket: the earliest first use of its parameters.
  std::vector<int64_t> first_use_of_buckets(const std::vector<int64_t>& of_parameters) const;

  GradientPipe& pipe() { return *pipe_; }
  const GradientPipe& pipe() const { return *pipe_; }

  StepProtocol& protocol_;
  const StepSetup& setup_;
  std::optional<AwaitingModules> modules_;  // a derived class's destructor ends it first
  std::vector<bool> is_late_;               // by parameter: in flight, or its gradient was, when the last step ended
  std::atomic<bool> anything_late_ = false;
  c10::Device clock_ = c10::kCPU;     // its clock times the forward
  bool is_last_step_unused_ = false;  // nobody has used the gradients of the last step

 private:
  void module_awaits(const torch::nn::Module& module);
  void receive_in_forward(const std::vector<size_t>& parameters);

  const char* unused_;
  GradientPipe* pipe_ = nullptr;  // from renewed()
  std::vector<ForwardTimes::Pause> pauses_;
  double forward_wait_s_ = 0;  // since the last step ended
  double last_forward_wait_s_ = 0;
};

}  // namespace firkin
