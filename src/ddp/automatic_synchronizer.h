// The strategy bucketed with buckets = automatic().
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "bucket_synchronizer.h"
#include "bucket_tuning.h"

namespace firkin {

// Looks at the clock while steps run, and takes the plans into use that BucketTuning decides on, between steps.
class AutomaticSynchronizer final : public BucketSynchronizer {
 public:
  explicit AutomaticSynchronizer(SynchronizerSetup setup);
  ~AutomaticSynchronizer() override { remove_hooks(); }

  DataParallelStats stats() const override;

 private:
  using Clock = std::chrono::steady_clock;

  void begin_gradients(int64_t step) override;
  void gradient_placed(size_t parameter) override;
  void gradient_ready(size_t parameter) override;
  std::exception_ptr send_gradients(RankState state) override;
  void drop_gradients() override;
  void step_succeeded(const StepAgreement& agreement) override;
  TrainingTimes times_of_step(double period_s) const;

  BucketTuning tuning_;
  // Of this step. Times with what launching has taken until then, which is the other plan's to take or not.
  Clock::time_point began_;
  std::optional<Clock::time_point> placed_at_;  // the last gradient, until its bucket is launched
  Clock::duration launching_{};
  int64_t launches_ = 0;
  std::vector<std::optional<double>> ready_s_;  // per parameter
  double sent_s_ = 0;                           // backward is over
  std::optional<Clock::time_point> last_end_;   // of the step before, if it ended well
};

}  // namespace firkin
