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
class BucketSynchronizer : public StepSynchronizer {
 public:
  explicit BucketSynchronizer(SynchronizerSetup setup);
  ~BucketSynchronizer() override { remove_hooks(); }

  DataParallelStats stats() const override;
  const BucketPlan& plan() const override { return communication_.plan; }
  const std::vector<int64_t>& ready_order() const override { return ready_order_; }

 protected:
  void begin_gradients(int64_t step) override;
  void gradient_ready(size_t parameter) override;
  std::exception_ptr send_gradients(RankState state) override;
  void receive_gradients(const StepAgreement& agreement) override;
  void drop_gradients() override;
  std::string place() const override { return launcher_ == nullptr ? "" : launcher_->first_pending(); }

  // The gradient is complete and in its bucket, during backward, and the bucket is not sent yet.
  virtual void gradient_placed(size_t /*parameter*/) {}

  // Whether the bucket need not have arrived when the step ends. Asked once no rank has failed.
  virtual bool may_arrive_later(int64_t /*bucket*/) const { return false; }

  // The bucket's sum arrives. Returns the positions of the tensors that are complete with it and were used by some rank.
  std::vector<int64_t> receive(int64_t bucket, c10::function_ref<std::string()> what);
  // Their places in the buckets become the gradients.
  void adopt(const std::vector<int64_t>& positions);

  bool has_learned() const { return counter_.has_learned(); }
  BucketLauncher* launcher() const { return launcher_.get(); }
  const CommunicationPlan& communication() const { return communication_; }
  const at::Tensor& tensor_at(int64_t position) const {
    return setup().parameters[static_cast<size_t>(communication_.order[static_cast<size_t>(position)])].tensor;
  }
  int64_t position_of(size_t parameter) const { return position_of_[parameter]; }
  void set_launch_order(std::vector<int64_t> order);
  // From the next step on, and whatever the first step shows; between steps. The old buckets' memory is the gradients' until they are gone.
  void use_plan(CommunicationPlan communication);
  // Streams: what reads the gradients, or the bucket of a step that failed, comes after it; what fills the buckets again follows it.
  StreamMark& settled() { return settled_; }
  void keep_stats() { bucket_stats_ = launcher_->stats(); }

 private:
  bool has_gradient(size_t parameter) const override;
  bool sends_when_ready() const { return setup().options.strategy.launch == Launch::kWhenReady; }
  void build_buckets();
  void place_bucket(int64_t bucket);
  void learn(int root, bool we_had_data);

  std::vector<int64_t> ready_order_;
  StreamMark settled_;
  CommunicationPlan communication_;   // position in the buckets -> parameter
  std::vector<int64_t> position_of_;  // parameter -> position in the buckets
  bool is_plan_final_ = false;        // the first step's order does not change it
  ReadyCounter counter_;
  std::vector<bool> placed_;                  // position: in its bucket, in this step
  std::vector<bool> used_;                    // parameter: by some rank, in the step that ended last
  double scale_ = 1;                          // of its sums: where ranks were without data
  std::unique_ptr<BucketLauncher> launcher_;  // null between the change of a plan and the next step
  std::vector<BucketStats> bucket_stats_;     // of the last finished step
};

}  // namespace firkin
