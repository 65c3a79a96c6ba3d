// Gradients synchronised by c10d::Reducer: the strategy torch, the peer that the others are compared with.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "step_synchronizer.h"
#include "torch_reducer.h"

namespace firkin {

// The Reducer works within backward, on its own; what it lacks is added around it: parameters without a gradient, and a way out for a rank
// whose backward threw.
class TorchSynchronizer final : public StepSynchronizer {
 public:
  explicit TorchSynchronizer(SynchronizerSetup setup);
  ~TorchSynchronizer() override { remove_hooks(); }

  // Throws InputError: not supported.
  void check_can_join() const override;

  DataParallelStats stats() const override;
  const BucketPlan& plan() const override;
  const std::vector<int64_t>& ready_order() const override { return setup().ready_order; }

 private:
  void begin_gradients(int64_t step) override;
  void gradient_ready(size_t parameter) override { has_come_[parameter] = true; }
  std::exception_ptr send_gradients(RankState state) override;
  void receive_gradients(const StepAgreement& agreement) override;
  void drop_gradients() override { reducer_->rebuild_buckets(); }
  std::string place() const override { return ""; }
  void backward_ended() override;
  bool arrives_by_callback() const override { return true; }
  bool ignores_gradients() const override { return is_catching_up_; }

  void catch_up();

  std::optional<TorchReducer> reducer_;
  std::vector<bool> has_come_;  // per parameter, in this step
  std::atomic<bool> is_catching_up_ = false;
};

}  // namespace firkin
