// The strategy sharded: every rank sums and steps its part of each bucket, and modules wait for the parameters in the next forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddp/awaiting_modules.h"
#include "ddp/optimizer_state.h"
#include "ddp/synchronizer.h"

#include <torch/optim/optimizer.h>

namespace firkin {

// By the memory of a bucket: what the ranks have sent of this rank's part of it, slice by slice in their order.
using ExchangedSlices = std::unordered_map<const void*, at::Tensor>;

// Sends every rank its slice of a bucket. What comes is kept in `slices`, or, of a bucket that goes in pieces, in its own memory, to be
// summed when it is there: half the bytes of an all-reduce, which Gloo's own reduce-scatter is underneath.
GradientHook exchange_slices(std::shared_ptr<ExchangedSlices> slices);

// Of W ranks, rank r has the r-th of W equal slices of each bucket, a view.
at::Tensor slice_of(const ProcessGroup& group, const at::Tensor& bucket);

// An all-gather of a bucket's slices on its way.
class SlicesGather {
 public:
  SlicesGather() = default;                                           // of nothing
  SlicesGather(const ProcessGroup& group, const at::Tensor& bucket);  // starts it
  bool is_under_way() const { return !calls_.empty(); }
  void wait(const ProcessGroup& group, c10::function_ref<std::string()> what);  // until the bucket has the slices of all

 private:
  std::vector<Work> calls_;
};

// Makes this rank's slice of a bucket the sum of what came for it, if anything did, times `scale`. In the order of ranks: with two of them
// the sum is an all-reduce's to the last bit.
void sum_slices(const ProcessGroup& group, const at::Tensor& bucket, ExchangedSlices& slices, double scale = 1);

// Throws InputError for options that the strategy does not support.
void check_sharded(const DataParallelOptions& options);

// This rank's run of a parameter's elements: what its slice of the bucket has of them.
struct ParameterPart {
  at::Tensor parameter;
  // What is stepped, one tensor for good, whatever elements it shows; its gradient lies in the bucket. With master weights a copy in
  // float32, as its gradient is.
  NamedTensor run;
  int64_t bucket = -1;   // that the parameter lies in; -1: it is frozen, and its state is kept for when it is thawed
  int64_t position = 0;  // of the parameter among the buckets' tensors
  int64_t begin = 0;     // of the run, in the parameter's memory
  int64_t count = 0;
  int64_t in_bucket = 0;  // where the run begins there

  bool has_master() const { return run.tensor.scalar_type() != parameter.scalar_type(); }
};

// A step, from its end on (synchronizer.h draws what comes before):
//
//   your thread                                                  transport's threads
//   -----------                                                  -------------------
//   backward() ends: Sharded::received   sums of slices  <-----  all-to-all of every bucket
//   ShardedOptimizer::step
//   |  Sharded::step, per bucket in the order of use
//   |  |  torch::optim::Optimizer::step  on the bucket's parts
//   |  |  gather                         ----------------------> all-gather, in the bucket's own memory
//   |  |  receive                        what nobody awaits  <-
//   forward
//   |  await_parameters: module_awaits
//   |  |  receive                        its buckets <---------- parameters
//   backward() begins: Sharded::begun
//   |  receive                           the rest <------------
//
// Every step that succeeded is followed by one gather of every bucket, in the same order on every rank, before the next step sends
// anything: both use the same connections. A rank whose program did not step takes part with what it has, when its next step begins, and
// fails that.
class Sharded final : public StepExtension {
 public:
  // synchronizer: must outlive this. slices: its hook's.
  Sharded(Synchronizer& synchronizer, std::shared_ptr<ExchangedSlices> slices);
  ~Sharded() override;

  std::vector<NamedTensor> parts() const;
  void keep_masters();  // before attach()
  void attach(torch::optim::Optimizer& optimizer);
  void detach();

  // These do what ShardedOptimizer and DataParallel promise.
  void step();
  double clip_gradients(double max_norm);
  void gather_into(torch::optim::Optimizer& whole, std::optional<int> to);
  void load_from(const torch::optim::Optimizer& whole);
  std::vector<NamedTensor> gather_masters(std::optional<int> to);
  void load_masters(const std::vector<NamedTensor>& masters);
  void drain();
  void add_to(DataParallelStats& stats) const;

  // Before the parameters change: afterwards this rank owes the others nothing.
  void settle();
  bool is_gathering() const { return anything_late_; }

  void begun() override;
  void gradient(size_t parameter) override;
  std::exception_ptr objection() const override;
  bool may_arrive_later(int64_t /*bucket*/) const override { return true; }  // they are received here
  void received(const StepAgreement& agreement, bool is_first) override;
  void dropped() override;
  std::string why_not_renewed() const override;
  void renewed() override;

 private:
  using State = std::unique_ptr<torch::optim::OptimizerParamState>;

  std::vector<ParameterPart> divide() const;
  void take_up(std::vector<ParameterPart> parts);
  void finish_round();
  void follow_parameters();
  void learn_use(int root);
  void forget_gradients();
  std::vector<int64_t> gather_order() const;
  bool may_be_late(int64_t bucket) const;
  void step_bucket(int64_t bucket, const std::vector<at::Tensor>& gradients);
  void gather(int64_t bucket);
  void receive(int64_t bucket);
  void receive_all();
  void module_awaits(const torch::nn::Module& module);
  void gather_states(c10::function_ref<void(size_t part, State whole)> take);
  void regroup(const std::vector<ParameterPart>& parts);
  const BucketTransport& transport() const { return synchronizer_.transport(); }
  const at::Tensor& flat(int64_t bucket) const { return transport().buckets()->wire(bucket); }
  size_t trained() const { return is_late_.size(); }

  Synchronizer& synchronizer_;
  std::shared_ptr<ExchangedSlices> slices_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  bool keeps_masters_ = false;        // of parameters in low precision
  std::vector<ParameterPart> parts_;  // of the trained parameters, in their order; then of frozen ones
  std::optional<AwaitingModules> modules_;
  std::vector<double> first_use_;  // by parameter, the same on every rank; empty before the first step
  double uses_ = 0;
  std::vector<SlicesGather> gathers_;  // by bucket
  std::vector<bool> is_late_;          // parameter: it was on its way when the last step ended
  std::atomic<bool> anything_late_ = false;
  bool has_gradients_ = false;   // of a step that succeeded, and nobody has stepped them
  bool steps_are_lost_ = false;  // nobody ever has
  double forward_wait_s_ = 0;    // since the last step ended
  double last_forward_wait_s_ = 0;
  std::optional<ForwardListening> listening_;
};

}  // namespace firkin
