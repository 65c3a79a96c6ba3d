#include "automatic_synchronizer.h"

#include <utility>

namespace firkin {

AutomaticSynchronizer::AutomaticSynchronizer(SynchronizerSetup setup_in)
    : BucketSynchronizer(std::move(setup_in)), tuning_(setup()), ready_s_(setup().parameters.size()) {
  if (std::optional<CommunicationPlan> kept = tuning_.begin()) use_plan(std::move(*kept));
}

void AutomaticSynchronizer::begin_gradients(int64_t step) {
  BucketSynchronizer::begin_gradients(step);
  began_ = Clock::now();
  launching_ = {};
  launches_ = 0;
  ready_s_.assign(ready_s_.size(), std::nullopt);
}

void AutomaticSynchronizer::gradient_placed(size_t parameter) {
  placed_at_ = Clock::now();
  ready_s_[parameter] = std::chrono::duration<double>(*placed_at_ - began_ - launching_).count();
}

void AutomaticSynchronizer::gradient_ready(size_t parameter) {
  const size_t launched_before = launcher()->launched();
  placed_at_.reset();
  BucketSynchronizer::gradient_ready(parameter);
  if (launcher()->launched() == launched_before || !placed_at_) return;
  launching_ += Clock::now() - *placed_at_;
  launches_ += static_cast<int64_t>(launcher()->launched() - launched_before);
}

std::exception_ptr AutomaticSynchronizer::send_gradients(RankState state) {
  sent_s_ = std::chrono::duration<double>(Clock::now() - began_ - launching_).count();
  return BucketSynchronizer::send_gradients(state);
}

void AutomaticSynchronizer::drop_gradients() {
  BucketSynchronizer::drop_gradients();
  last_end_.reset();  // the time to the next end is no step's
}

// Gradients that were complete with the end of backward only were ready then.
TrainingTimes AutomaticSynchronizer::times_of_step(double period_s) const {
  TrainingTimes times{.ready_s = {}, .backward_s = sent_s_, .step_s = period_s};
  for (const std::optional<double>& ready_s : ready_s_) times.ready_s.push_back(ready_s.value_or(sent_s_));
  if (launches_ > 0) times.launch_s = std::chrono::duration<double>(launching_).count() / static_cast<double>(launches_);
  return times;
}

// A step counts where all ranks had data and the one before it had ended well: known to all alike.
void AutomaticSynchronizer::step_succeeded(const StepAgreement& agreement) {
  const std::optional<Clock::time_point> before = last_end_;
  if (before && agreement.ranks_with_data() == setup().group.size) {
    const double period_s = std::chrono::duration<double>(Clock::now() - *before).count();
    if (std::optional<CommunicationPlan> next = tuning_.step_ended(times_of_step(period_s), communication())) use_plan(std::move(*next));
  }
  last_end_ = Clock::now();  // what was measured after the step is not the next one's
}

DataParallelStats AutomaticSynchronizer::stats() const {
  DataParallelStats result = BucketSynchronizer::stats();
  const std::lock_guard lock(mutex_);
  result.automatic = tuning_.phase();
  return result;
}

}  // namespace firkin
