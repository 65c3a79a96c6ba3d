// What the strategies ordered and sharded share: part of a step is still in flight when it ends, and modules await it
// in the next forward. Which modules do, and when, is learned: LibTorch's C++ modules have no forward hooks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comm/device_time.h"
#include "synchronizer.h"

#include <torch/nn/module.h>

namespace firkin {

// Why these parameters cannot be stepped one by one, as they are needed: two share memory. Empty if they can.
std::string why_not_awaited(std::vector<NamedTensor> parameters);

// Learns from the first forward which module a parameter belongs to: the innermost awaiting one that holds it, itself
// or in a submodule. A tied parameter may belong to several, one that is used without an await to none. Not
// thread-safe.
class AwaitingModules {
 public:
  // While this lives, `on_await` is told of every await_parameters() of the module and of its submodules: on the thread
  // that runs the forward, without a lock. No forward of the module may run while this is made or destroyed.
  using OnAwait = std::function<void(const torch::nn::Module& module)>;
  AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters, OnAwait on_await);
  ~AwaitingModules();
  AwaitingModules(const AwaitingModules&) = delete;
  AwaitingModules& operator=(const AwaitingModules&) = delete;

  // Notes that a module awaits its parameters. moment: grows within a forward. Returns whether it
  // is one of the modules and has not awaited in this forward before.
  bool note(const torch::nn::Module& module, int64_t moment);
  // Learns from what was noted so far. The module must not have changed since.
  void learn();

  // Parameters, by index, of a module and of those in it, whoever awaits them.
  std::vector<size_t> indices_in(const torch::nn::Module& module) const;
  // Parameters, by index, that belong to the module. Empty for one that was not seen awaiting.
  const std::vector<size_t>& parameters_of(const torch::nn::Module& module) const;
  bool is_awaited(size_t parameter) const { return is_awaited_[parameter]; }
  // The moment at which the last forward first used the parameter. 0 if no module awaits it: it must be there when
  // backward ends.
  int64_t first_use(size_t parameter) const;

  // Begins a forward: no module has awaited in it yet.
  void begin_forward();
  // Notes that these parameters, by index, were received in this forward, for a module or for other code.
  void note_received(const std::vector<size_t>& parameters) { received_.insert(parameters.begin(), parameters.end()); }
  // Call it for a gradient whose parameter was in flight when the forward began. Throws RuntimeError naming a module
  // that the parameter belongs to and that has not awaited it in this forward: it has used an old value.
  void check_awaited(size_t parameter, const std::string& name) const;

 private:
  friend void await_parameters(const torch::nn::Module& module);
  struct Owner {
    std::string name;
    bool was_seen = false;  // awaiting in the first forward
    bool has_awaited = false;
    int64_t awaited_at = 0;
    std::vector<size_t> parameters;
  };
  void learn(const torch::nn::Module& module, Owner* innermost);

  const torch::nn::Module& root_;
  OnAwait on_await_;
  std::unordered_map<const void*, size_t> index_of_;            // by parameter
  std::unordered_map<const torch::nn::Module*, Owner> owners_;  // every module
  std::vector<std::vector<const Owner*>> owners_of_;            // per parameter
  std::vector<bool> is_awaited_;                                // wherever it is registered
  std::unordered_set<size_t> received_;                         // in this forward, as noted
  bool has_learned_ = false;
};

// A forward, from the end of one step to the first gradient of the next.
struct ForwardTimes {
  struct Pause {
    DeviceTime from, to;  // equal if nothing was waited for
  };
  // The end of the step, then where modules awaited for the first time, or something was received; last, the first
  // gradient. Empty if no forward was observed.
  std::vector<Pause> pauses;
  std::vector<int64_t> first_use;  // by parameter: the pause, as an index

  // By pause: seconds from the end of the step, without waits. On a device, waits for the last of them.
  std::vector<double> seconds() const;
};

// Methods take the step's lock, except those of StepExtension, whose callers hold it.
class FirstUse : public StepExtension {
 public:
  // synchronizer: must outlive this. unused: the error if nobody has used the gradients of a step.
  FirstUse(Synchronizer& synchronizer, const StepSetup& setup, const char* unused)
      : synchronizer_(synchronizer), setup_(setup), unused_(unused) {}

  // See DataParallel.
  void drain();
  void receive_parameters(const torch::nn::Module& part);
  void add_to(DataParallelStats& stats) const;
  // Receives what is in flight: at the end of a step, before the optimiser's, or between steps. Afterwards nothing is
  // late, and the buckets may be replaced.
  virtual void receive_rest();

  void before_comparison() override { receive_all(); }
  void check(std::optional<size_t> gradient) override;
  void ended(const StepAgreement& agreement, bool is_good) override;
  void renewed(BucketTransport& transport) override;

 protected:
  virtual void receive_all() = 0;
  virtual void receive_those(const std::vector<size_t>& parameters) = 0;
  // Whether a step may end before the bucket has arrived: every parameter in it is awaited by a module, in every
  // forward.
  virtual bool may_be_late(int64_t bucket) const;

  // The lock for an optimiser's step. Throws RuntimeError within a step of the module.
  std::unique_lock<std::recursive_mutex> enter_after_step() const;
  // To be called when a step has ended well.
  void begin_forward();
  // The forward since then.
  ForwardTimes end_forward();
  // By bucket: the earliest first use of its parameters.
  std::vector<int64_t> first_use_of_buckets(const std::vector<int64_t>& of_parameters) const;

  BucketTransport& transport() { return *transport_; }
  const BucketTransport& transport() const { return *transport_; }

  Synchronizer& synchronizer_;
  const StepSetup& setup_;
  std::optional<AwaitingModules> modules_;  // a derived class's destructor ends it first
  std::vector<bool> is_late_;               // by parameter: it, or its gradient, was in flight when the last step ended
  std::atomic<bool> anything_late_ = false;
  c10::Device clock_ = c10::kCPU;  // whose clock times the forward
  bool steps_are_lost_ = false;    // nobody has used the gradients of the last step

 private:
  void module_awaits(const torch::nn::Module& module);
  void receive_in_forward(const std::vector<size_t>& parameters);

  const char* unused_;
  BucketTransport* transport_ = nullptr;  // from renewed()
  std::vector<ForwardTimes::Pause> pauses_;
  double forward_wait_s_ = 0;  // since the last step ended
  double last_forward_wait_s_ = 0;
};

}  // namespace firkin
