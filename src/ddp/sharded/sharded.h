// The strategy sharded: every rank sums and steps its part of each bucket, and modules wait for the parameters in the
// next forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/forward_overlap.h"
#include "ddp/optimizer_state.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "slices.h"

#include <torch/optim/optimizer.h>

namespace firkin {

// Throws InputError for options and modules with which the strategy cannot train.
void check_sharded(const DataParallelOptions& options, const torch::nn::Module& module);
// Why the strategy cannot train the module: a part of it is registered under two names. Empty if it can.
std::string why_not_sharded(const torch::nn::Module& module);

// The run of a parameter's elements that this rank steps: those in this rank's slice of the bucket.
struct ParameterPart {
  at::Tensor parameter;
  // The tensor that the optimiser steps. It stays the same tensor when it gets other elements. 1-d or, with
  // whole_parameters, of the parameter's shape. Its gradient is a view into the bucket; with master weights both are
  // float32 copies.
  NamedTensor run;
  int64_t bucket = -1;   // -1: the parameter is frozen, and its state is kept until it is thawed
  int64_t position = 0;  // the parameter's index among the buckets' tensors
  int64_t begin = 0;     // where the run begins in the parameter's memory
  int64_t count = 0;
  int64_t in_bucket = 0;  // where the run begins in the bucket

  bool has_master() const { return run.tensor.scalar_type() != parameter.scalar_type(); }
  // A view of the run's shape into other memory, from its element `first` on.
  at::Tensor within(const at::Tensor& memory, int64_t first) const {
    return memory.as_strided(run.tensor.sizes(), run.tensor.strides(), memory.storage_offset() + first);
  }
};

// A step, from its end on (protocol.h draws what comes before):
//
//   your thread                                                  transport's threads
//   -----------                                                  -------------------
//   backward() ends: Sharded::received   sums of slices  <-----  all-to-all of every bucket (NCCL: a reduce-scatter)
//   ShardedOptimizer::step
//   |  Sharded::step, per bucket in the order of use
//   |  |  torch::optim::Optimizer::step  on the bucket's parts
//   |  |  gather                         ----------------------> all-gather, in the bucket's own memory
//   |  |  receive                        what nobody awaits  <-
//   forward
//   |  await_parameters: receive_those
//   |  |  receive                        its buckets <---------- parameters
//   backward() begins: Sharded::begin
//   |  receive                           the rest <------------
//
// After every step that ends well each bucket is gathered once, in the same order on every rank, before the next step
// launches anything over the same connections. A rank whose program has not stepped gathers what it has when its next
// step begins, and fails that step.
class Sharded final : public ForwardOverlap {
 public:
  // All must outlive this, except the pipe, which renewed() replaces. slices: the setup's reduction.
  Sharded(StepProtocol& protocol, const StepSetup& setup, GradientPipe& pipe, std::shared_ptr<SlicedReduction> slices);
  ~Sharded() override;

  std::vector<NamedTensor> parts() const;
  // See ShardedOptimizer.
  void step();
  double clip_gradients(double max_norm);

  // Call it before the parameters change: makes the gathers that other ranks still wait for.
  void complete_gathers();
  bool is_gathering() const { return anything_late_; }

  void begin() override;
  void check(std::optional<size_t> gradient) override;
  void received(const StepAgreement& agreement, bool is_first) override;
  void renewed(GradientPipe& pipe) override;

 private:
  friend class ShardedOptimizer;  // attaches the optimiser, and reads and writes its state
  using State = std::unique_ptr<torch::optim::OptimizerParamState>;

  void divide();
  std::vector<SliceLengths> lengths_of_whole_parameters() const;
  void replace_parts(std::vector<ParameterPart> parts);
  void follow_parameters();
  void forget_gradients();
  std::vector<int64_t> gather_order() const;
  void step_buckets();
  void check_no_gradients() const;
  void step_bucket(int64_t bucket, const std::vector<at::Tensor>& gradients, StepInParts& step);
  void gather(int64_t bucket);
  void receive(int64_t bucket);
  void receive_all() override;
  void receive_those(const std::vector<size_t>& parameters) override;
  void gather_states(c10::function_ref<void(size_t part, State whole)> take);
  void regroup(const std::vector<ParameterPart>& parts);
  StreamMark& stream_mark() { return pipe().stream_mark(); }
  const at::Tensor& flat(int64_t bucket) const { return pipe().buckets()->wire(bucket); }
  size_t trained_count() const { return is_late_.size(); }

  std::shared_ptr<SlicedReduction> slices_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  ShardedOptions options_;
  std::vector<ParameterPart> parts_;  // trained parameters in their order, then frozen ones
  std::vector<int64_t> first_use_;    // per parameter, the same on every rank; empty before the first step
  bool has_gradients_ = false;        // a step has ended well, and the optimiser has not stepped yet
};

}  // namespace firkin
