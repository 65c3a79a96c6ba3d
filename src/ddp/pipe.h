// Moves gradients into buckets, launches the buckets in the plan's order, and receives the sums.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "buckets.h"
#include "comm/device_time.h"
#include "flight.h"
#include "ready_order.h"
#include "step_setup.h"

namespace firkin {

// The times of one backward, by the clock of a device. To read a device's times is to wait for the device: do it steps
// later.
struct BackwardTimes {
  struct Ready {
    DeviceTime at;
    size_t launches = 0;  // how many entries of `launching` came before it
  };
  DeviceTime began = {};
  // Per parameter: when it was placed; none: after the end of backward.
  std::vector<std::optional<Ready>> ready = {};
  // Launches of one bucket, or of several at once: from when the gradient that filled them was placed to the end.
  std::vector<std::pair<DeviceTime, DeviceTime>> launching = {};
  int64_t launches = 0;  // buckets in `launching`
  DeviceTime ended = {};
};

// The memory of the gradient that receive() has left in a parameter, by the parameter. Addresses, which keep nothing
// alive.
using AdoptedGradients = std::unordered_map<const void*, const void*>;

// The pipe of one wrapped module. What ranks agree on, and what makes a step fail, is the protocol's (protocol.h); here
// a step only lasts from one begin() to the next. Strategies differ in data: the plan, whether a full bucket is
// launched at once, and the reduction, which makes the sums (reduction.h). The first step launches everything after
// backward. It shows in which order gradients become ready and how many times each is accumulated, on which later steps
// rely.
//
//   begin()   all buckets are empty
//   ready()   for gradients as they come: the last one of a parameter is placed into its bucket, and the buckets that are
//             full are launched
//   send()    launches the rest
//   receive() waits for the sums, which become the gradients; or drop(), if the step has failed
//
// Every bucket of a step is launched exactly once, in the same order on every rank: ranks that launch in different
// orders deadlock. Lives as long as the setup has the same parameters. Thread-safety: every call is made under the
// protocol's mutex.
class GradientPipe {
 public:
  using What = c10::function_ref<std::string()>;  // for firkin::wait()

  // setup: must outlive this. adopted: from release() of the pipe before. Throws InputError for options that do not fit
  // the parameters, c10::Error when memory is out.
  GradientPipe(const StepSetup& setup, AdoptedGradients adopted);

  // From the next step on, times are taken by events of this stream's device, and the stream is made to wait for the
  // sums; without a stream, by the CPU's clock.
  void time_on(std::optional<c10::Stream> stream) { timing_ = stream; }
  // From the next step on: which buckets may arrive after receive(), by bucket; empty: none.
  void let_arrive_late(std::vector<bool> buckets) { may_be_late_ = std::move(buckets); }
  // From the next step on: backward is timed by this device's clock; none: not timed.
  void time_backward_on(std::optional<c10::Device> clock) { backward_clock_ = clock; }
  // Those of the last backward that was timed.
  const BackwardTimes& backward_times() const { return backward_; }
  // When backward was over in the last step, by the clock of time_on().
  const DeviceTime& backward_ended() const { return backward_ended_; }
  void begin();
  // The parameter has got a gradient.
  void ready(size_t parameter);
  // The parameter gets no gradient from this backward: places what it holds already.
  void skip(size_t parameter);
  // What goes into buckets that are not full: the gradients that the parameters hold; zeros, into all buckets; or, for
  // sums that nobody will use, whatever is there.
  enum class Rest { kGradients, kZeros, kAnything };
  // Launches what is not launched yet, whatever happens. Returns what is wrong with this rank's part (a sparse
  // gradient, for example); null if nothing is.
  std::exception_ptr send(Rest rest, What what);
  // Between send() and receive(): finishes all reductions. Returns the error of the first that failed on this rank;
  // null if none did.
  std::exception_ptr finish_reductions(What what);
  // Waits for the sums, except those that may be late (unless `all`), and scales them. They become the gradients of the
  // wanted parameters, unless the reduction keeps them in the buckets.
  void receive(const std::vector<bool>& wanted, double scale, bool all, What what);
  // After the first receive(): learns the order of gradients from rank `root` and, on a rank without data, how many
  // each parameter gets. Collective.
  void learn(int root, bool we_had_data);
  // Instead of receive(), in a step that has failed.
  void drop(What what);
  // Before another pipe replaces this one. Gradients that are still in the buckets keep their memory.
  AdoptedGradients release() {
    buckets_.reset();
    return std::move(adopted_);
  }

  // Whether ready() has counted a gradient of the parameter in this step. False under strategies that launch nothing in
  // backward.
  bool is_counted(size_t parameter) const { return counter_.counts()[parameter] > 0; }
  bool is_placed(size_t parameter) const { return placed_[parameter]; }
  // Whether the parameter's gradient is the one that receive() has left there.
  bool is_adopted(size_t parameter) const;
  // Whether the program has put zeros where gradients would be. Code for checkpoints does so to have an optimiser make
  // its state.
  bool are_gradients_placeholders() const;
  bool has_learned() const { return counter_.has_learned(); }
  // Whether the last receive() had the parameter among the wanted ones.
  bool is_wanted(size_t parameter) const { return wanted_[parameter]; }
  bool sends_when_ready() const { return setup_.options.strategy.launch == Launch::kWhenReady; }
  const CommunicationPlan& communication() const { return communication_; }
  const std::vector<int64_t>& ready_order() const { return ready_order_; }
  int64_t position_of(size_t parameter) const { return position_of_[parameter]; }
  // In launch order, of the last step that was finished.
  const std::vector<BucketStats>& finished_stats() const { return finished_stats_; }
  // "bucket 3 (blocks.2.w1.weight and 4 more, 4.2 MiB)"
  std::string describe(int64_t bucket) const;
  // Describes the first bucket, in launch order, whose sum has not arrived; empty if all have.
  std::string first_pending() const;

  // From the next step on: uses this plan, whatever order the first step shows. Call it between steps. Gradients that
  // are still in the old buckets keep their memory.
  void use_plan(CommunicationPlan communication);
  // Call it between steps, once all buckets are received. order: as BucketPlan::launch_order.
  void set_launch_order(std::vector<int64_t> order);

  // Null between a change of the plan and the next step.
  const GradientBuckets* buckets() const { return buckets_.get(); }
  // The parameters in a bucket, in the order of their places in it.
  std::span<const int64_t> parameters_in(int64_t bucket) const;
  // Buckets of the step that were launched and not received, in launch order.
  std::vector<int64_t> not_received() const;
  bool is_received(int64_t bucket) const { return flight(bucket).is_consumed(); }
  bool has_arrived(int64_t bucket) const { return !flight(bucket).is_pending(); }  // receive_bucket() would not wait
  // Receives a bucket, without adopting its gradients. Call it once a step. Returns the wanted parameters in it. Throws
  // as firkin::wait() does.
  std::vector<size_t> receive_bucket(int64_t bucket, What what);
  // Makes the parameters' places in the buckets their gradients. Copies them to gradients of the program's own: see
  // Note [Gradients that the program holds] in buckets.h.
  void adopt(const std::vector<size_t>& parameters);
  const DeviceTime& started_at() const { return started_at_; }
  // The bucket's times in the last step. Call it once the bucket is received.
  BucketTimes times_of(int64_t bucket) const { return flight(bucket).times(); }
  int64_t bucket_at(size_t launch_index) const;
  // Orders the streams of a device. Set behind what receive() and drop() have queued; what reads the gradients or fills
  // the buckets again follows it.
  StreamMark& stream_mark() { return stream_mark_; }

 private:
  BucketFlight& flight(int64_t bucket) { return flights_[static_cast<size_t>(bucket)]; }
  const BucketFlight& flight(int64_t bucket) const { return flights_[static_cast<size_t>(bucket)]; }
  void build_buckets();
  bool may_be_late(int64_t bucket) const { return !may_be_late_.empty() && may_be_late_[static_cast<size_t>(bucket)]; }
  void place_and_launch(size_t parameter);
  void place(size_t parameter);
  bool is_programs_own(size_t parameter) const;
  void launch_next();
  void consume(int64_t bucket);

  const StepSetup& setup_;
  AdoptedGradients adopted_;
  std::vector<int64_t> ready_order_;
  StreamMark stream_mark_;
  CommunicationPlan communication_;   // position in the buckets -> parameter
  std::vector<int64_t> position_of_;  // parameter -> position in the buckets
  bool is_plan_final_ = false;        // the first step's order does not change it
  ReadyCounter counter_;
  std::vector<bool> placed_;                  // by parameter: in its bucket, in this step
  std::vector<bool> wanted_;                  // by parameter, from the last receive()
  double scale_ = 1;                          // from the last receive()
  std::unique_ptr<GradientBuckets> buckets_;  // null between a change of the plan and the next step
  // By parameter: gradients in this step that the program holds itself.
  std::map<size_t, at::Tensor> own_gradients_;
  std::vector<BucketFlight> flights_;
  BucketForm form_;
  std::vector<size_t> launch_index_;  // per bucket
  size_t launched_ = 0;               // buckets of this step
  std::vector<bool> may_be_late_;     // by bucket; empty: none
  std::optional<c10::Stream> timing_;
  DeviceTime started_at_, backward_ended_;
  std::optional<c10::Device> backward_clock_;
  BackwardTimes backward_;
  std::vector<BucketStats> stats_;
  std::vector<BucketStats> finished_stats_;
};

}  // namespace firkin
