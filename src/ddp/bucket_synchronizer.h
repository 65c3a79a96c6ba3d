// Gradients synchronised in buckets of our own: the strategies naive, flat, overlap, bucketed and planned.
#pragma once

#include <memory>
#include <vector>

#include "bucket_launcher.h"
#include "communication_plan.h"
#include "ready_counter.h"
#include "step_synchronizer.h"

namespace firkin {

// What differs between these strategies is data: the plan, and whether a full bucket is sent at once. The first step sends everything after
// backward: it shows in which order gradients come, and how many times each is accumulated, which later steps rely on.
class BucketSynchronizer final : public StepSynchronizer {
 public:
  explicit BucketSynchronizer(SynchronizerSetup setup);
  ~BucketSynchronizer() override { remove_hooks(); }

  DataParallelStats stats() const override;
  const BucketPlan& plan() const override { return communication_.plan; }
  const std::vector<int64_t>& ready_order() const override { return ready_order_; }

 private:
  void begin_gradients(int64_t step) override;
  void gradient_ready(size_t parameter) override;
  std::exception_ptr send_gradients(RankState state) override;
  void receive_gradients(const StepAgreement& agreement) override;
  void drop_gradients() override;
  std::string place() const override { return launcher_ == nullptr ? "" : launcher_->first_pending(); }
  bool has_gradient(size_t parameter) const override;

  bool sends_when_ready() const { return setup().options.strategy.launch == Launch::kWhenReady; }
  void build_buckets();
  void place_bucket(int64_t bucket);
  void learn(int root, bool we_had_data);

  std::vector<int64_t> ready_order_;
  CommunicationPlan communication_;   // position in the buckets -> parameter
  std::vector<int64_t> position_of_;  // parameter -> position in the buckets
  ReadyCounter counter_;
  std::unique_ptr<BucketLauncher> launcher_;  // null between the step that changed the plan and the next
  std::vector<BucketStats> bucket_stats_;     // of the last finished step
};

}  // namespace firkin
