// Gradients in buckets: filled in backward, launched in the plan's order, received; and what may stand beside the core and look on.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "agreement.h"
#include "buckets.h"
#include "comm_hook.h"
#include "flight.h"
#include "ready_order.h"

namespace firkin {

// What a wrapped module is stepped with. Of all that is here only `parameters` and `initial_order` ever change, between steps.
struct StepSetup {
  torch::nn::Module* module = nullptr;
  ProcessGroup group;    // carries the gradients, and nothing else
  ProcessGroup control;  // the same ranks over other connections, for all else: nothing small waits behind a bucket
  DataParallelOptions options;
  std::shared_ptr<BucketCollective> collective = nullptr;  // in place of options.gradient_hook
  std::vector<NamedTensor> parameters;                     // that are trained
  std::vector<int64_t> initial_order;                      // of parameters, until a step has shown in which their gradients become ready
};

// The core's seam: ordered/, sharded/ and automatic/ derive from it. Called in the order of this list, under the step's lock, on every rank
// alike where no gradient is named. What throws in gradient() comes out of backward(), and the step fails; what throws elsewhere loses the
// group.
class StepExtension {
 public:
  virtual ~StepExtension() = default;

  virtual void begun() {}                         // a step, before anything is in a bucket
  virtual void before_comparison() {}             // of all parameters between ranks: nothing of the last step is under way afterwards
  virtual void gradient(size_t /*parameter*/) {}  // one has come, to be synchronised or not
  virtual void placed(size_t /*parameter*/) {}    // it is complete and in its bucket, during backward
  virtual void launched(size_t /*buckets*/) {}    // because of it
  virtual void sending() {}                       // backward is over; what is left is sent next
  // This rank cannot go on: the step fails with this error.
  virtual std::exception_ptr objection() const { return nullptr; }
  // All is sent, and no rank has failed: the bucket need not have arrived when the step ends.
  virtual bool may_arrive_later(int64_t /*bucket*/) const { return false; }
  virtual void received(const StepAgreement& /*agreement*/, bool /*is_first*/) {}  // is_first: of these buckets; more is learned from it
  virtual void ended(const StepAgreement& /*agreement*/) {}                        // nothing of the step is under way; may be collective
  virtual void dropped() {}  // instead of the last two: some rank failed, or none had data
  virtual void renewed() {}  // the setup's parameters are others, and the buckets new; before the next step
};

// By parameter: its gradient as a step has left it there. Identities alone, which keep nothing alive.
using AdoptedGradients = std::unordered_map<const void*, const void*>;

// What differs between the strategies is data: the plan, and whether a full bucket is sent at once. The first step sends everything after
// backward: it shows in which order gradients come, and how many times each is accumulated, which later steps rely on.
//
// Every bucket of a step is launched exactly once, in the same order on every rank: ranks that launch in different orders deadlock. A step
// is begin(), ready() for gradients as they come, send(), and receive() or drop(). Not thread-safe.
class BucketTransport {
 public:
  using What = c10::function_ref<std::string()>;  // as firkin::wait() takes it

  // All must outlive this; `adopted` goes from one set of buckets to the next. Throws InputError for options that do not fit the
  // parameters, c10::Error when memory is out.
  BucketTransport(const StepSetup& setup, const std::vector<StepExtension*>& extensions, AdoptedGradients& adopted);

  void begin();
  void ready(size_t parameter);
  // Backward will bring no gradient for it: what it holds already goes into its bucket now.
  void skip(size_t parameter);
  // Sends what is not sent yet. Where state is not kWithData, what the parameters hold is of no interest. Returns what is wrong with a
  // gradient of this rank (it is sparse, say): then everything is sent all the same.
  std::exception_ptr send(RankState state, What what);
  // Null: there is none.
  const CommHookCalls* comm_hook() const { return comm_hook_.get(); }
  // After send(), unless some rank has failed: the hook's results are in the buckets, or what failed in it on this rank is returned.
  std::exception_ptr finish_comm_hook(What what);
  // Sums, scaled, become the gradients of the parameters that are wanted, but for those that may arrive later (unless `all`).
  void receive(const std::vector<bool>& wanted, double scale, bool all, What what);
  // After the first receive() of these buckets: order and counts of `root`. Collective.
  void learn(int root, bool we_had_data);
  void drop(What what);
  // Between steps, before others take its place: its memory is the gradients' until they are gone.
  void release() { buckets_.reset(); }

  bool is_placed(size_t parameter) const { return placed_[parameter]; }
  // The parameter's gradient is what a step has left there.
  bool is_adopted(size_t parameter) const;
  bool has_learned() const { return counter_.has_learned(); }
  // The parameter gets a gradient from this step: as receive() got it last.
  bool is_wanted(size_t parameter) const { return wanted_[parameter]; }
  bool sends_when_ready() const { return setup_.options.strategy.launch == Launch::kWhenReady; }
  const CommunicationPlan& communication() const { return communication_; }
  const std::vector<int64_t>& ready_order() const { return ready_order_; }
  int64_t position_of(size_t parameter) const { return position_of_[parameter]; }
  // In launch order, of the last step that came to its end.
  const std::vector<BucketStats>& finished_stats() const { return finished_stats_; }
  // "bucket 3 (blocks.2.w1.weight and 4 more, 4.2 MiB)"; the first in launch order whose sum is not there, empty when all are there.
  std::string describe(int64_t bucket) const;
  std::string first_pending() const;

  // From the next step on, and whatever the first step shows; between steps. The old buckets' memory is the gradients' until they are gone.
  void use_plan(CommunicationPlan communication);
  // Between steps, everything received. order: as BucketPlan::launch_order.
  void set_launch_order(std::vector<int64_t> order);

  // For buckets that arrive later. Null between a change of the plan and the next step, when there is none.
  const GradientBuckets* buckets() const { return buckets_.get(); }
  // In the order of their places there.
  std::span<const int64_t> parameters_in(int64_t bucket) const;
  // Buckets of the step that were launched and not received, in launch order.
  std::vector<int64_t> not_received() const;
  bool is_received(int64_t bucket) const { return flight(bucket).is_consumed(); }
  bool has_come(int64_t bucket) const { return !flight(bucket).is_pending(); }  // receive_bucket() would not wait
  // Returns the wanted parameters whose gradients are complete with it. Once a step. Throws as firkin::wait() does.
  std::vector<size_t> receive_bucket(int64_t bucket, What what);
  // Their places in the buckets become the gradients.
  void adopt(const std::vector<size_t>& parameters);
  // When begin() was called last.
  BucketFlight::Clock::time_point started_at() const { return started_at_; }
  // Streams: what reads the gradients, or the bucket of a step that failed, comes after it; what fills the buckets again follows it.
  StreamMark& settled() { return settled_; }

 private:
  BucketFlight& flight(int64_t bucket) { return flights_[static_cast<size_t>(bucket)]; }
  const BucketFlight& flight(int64_t bucket) const { return flights_[static_cast<size_t>(bucket)]; }
  int64_t bucket_at(size_t launch_index) const;
  void build_buckets();
  void place(size_t parameter);
  void place_bucket(int64_t bucket);
  void launch_next();
  void consume(int64_t bucket);

  const StepSetup& setup_;
  const std::vector<StepExtension*>& extensions_;
  AdoptedGradients& adopted_;
  std::vector<int64_t> ready_order_;
  StreamMark settled_;
  CommunicationPlan communication_;   // position in the buckets -> parameter
  std::vector<int64_t> position_of_;  // parameter -> position in the buckets
  bool is_plan_final_ = false;        // the first step's order does not change it
  ReadyCounter counter_;
  std::vector<bool> placed_;                  // parameter: in its bucket, in this step
  std::vector<bool> wanted_;                  // parameter: as receive() got it last
  double scale_ = 1;                          // as receive() got it last
  std::unique_ptr<GradientBuckets> buckets_;  // null between a change of the plan and the next step
  std::vector<BucketFlight> flights_;
  std::shared_ptr<BucketCollective> collective_;
  std::shared_ptr<CommHookCalls> comm_hook_;  // the same, if it is one
  std::vector<size_t> launch_index_;          // of each bucket
  size_t launched_ = 0;                       // of this step, so far
  BucketFlight::Clock::time_point started_at_;
  std::vector<BucketStats> stats_;
  std::vector<BucketStats> finished_stats_;
};

}  // namespace firkin
