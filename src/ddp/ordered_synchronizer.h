// The strategy ordered: gradients go on arriving while the next forward runs, and each module waits for its own.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "awaiting_modules.h"
#include "bucket_synchronizer.h"
#include "forward_listener.h"
#include "owed_steps.h"

namespace firkin {

// The first step is as with `bucketed` and shows which modules await, the second when buckets are ready and how long they take, from which
// rank 0 makes the launch order (plan/launch_order.h), unless the plan has one. From then on, when a step ends:
//   - the agreement has come, over the companion group, so that it does not wait behind the buckets: all ranks know that the step is good;
//   - buckets whose parameters are all awaited by some module are left on their way; the others are waited for;
//   - step() runs the optimiser on what has come, and owes it to the rest, which module_awaits() or drain() receives and pays.
class OrderedSynchronizer final : public BucketSynchronizer, public ForwardListener {
 public:
  OrderedSynchronizer(torch::nn::Module& module, SynchronizerSetup setup);
  ~OrderedSynchronizer() override;

  void step(torch::optim::Optimizer& optimizer) override;
  void drain() override;
  void module_awaits(const torch::nn::Module& module) override;
  DataParallelStats stats() const override;

 private:
  void begin_gradients(int64_t step) override;
  void gradient_ready(size_t parameter) override;
  void gradient_accumulated(size_t parameter) override { check_awaited(parameter); }
  std::exception_ptr send_gradients(RankState state) override;
  void receive_gradients(const StepAgreement& agreement) override;
  void drop_gradients() override;
  bool may_arrive_later(int64_t bucket) const override;

  void check_awaited(size_t parameter) const;
  void receive_late(int64_t bucket);
  void receive_all_late();
  std::vector<int64_t> late_buckets_of(const torch::nn::Module& module) const;
  void receive_in_turn(const std::vector<int64_t>& buckets);
  void agree_on_launch_order(int root);
  std::vector<int64_t> order_by_need() const;

  AwaitingModules modules_;
  bool has_launch_order_ = false;
  std::vector<bool> is_late_;  // parameter: its gradient was on its way when the last step ended
  std::atomic<bool> anything_late_ = false;
  bool are_unclaimed_ = false;   // nobody has asked for the gradients that were on their way when the last step ended
  bool steps_are_lost_ = false;  // gradients of the last step came to nobody's use
  OwedSteps owed_;
  double forward_wait_s_ = 0;  // since the last step ended
  double last_forward_wait_s_ = 0;
  std::optional<Listening> listening_;
};

}  // namespace firkin
