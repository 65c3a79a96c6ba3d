// A training on a device, on whatever streams of it, and the same one on the CPU to compare.
#pragma once

#include <c10/core/StreamGuard.h>

#include "../torch.h"
#include "autograd_functions.h"
#include "layered_net.h"
#include "side_streams.h"
#include "training.h"

namespace firkin {

// How a rank trains. On a CPU, streams are none of its concern.
struct Course {
  std::string strategy = "bucketed";
  GradientHook hook = {};
  int steps = 4;
  bool zero_in_place = false;               // zero_grad() leaves the gradients where they are: in the buckets
  bool on_a_side_stream = false;            // steps run on another stream than the one on which DataParallel was made
  bool with_two_gradients_streams = false;  // gradients of every other parameter are accumulated on a stream of their own
  bool a_step_fails = false;                // rank 1's
  bool with_joined_end = true;              // finish_with_backward
  bool clips = false;
  ShardedOptions sharded = {};
  at::ScalarType dtype = at::kDouble;
};

inline DataParallelOptions options_of(const Course& course, const torch::nn::Module& module) {
  DataParallelOptions options = with_strategy(course.strategy, 75 * static_cast<int64_t>(c10::elementSize(course.dtype)));
  options.gradient_hook = course.hook;
  options.finish_with_backward = course.with_joined_end;
  if (course.strategy == "planned") {
    const auto tensors = static_cast<int64_t>(trainable_parameters(module).size());
    options.plan = BucketPlan{{{0, 2}, {2, tensors - 2}}, {}};
  }
  return options;
}

// Returns the parameters, on the CPU.
inline Tensors train(const Course& course, const ProcessGroup& group, c10::Device device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(course.dtype);
  LayeredNet net(options);
  std::vector<decltype(torch::autograd::impl::grad_accumulator({}))>
      accumulators;  // a node belongs to the stream on which it was made first
  if (course.with_two_gradients_streams && !device.is_cpu()) {
    const c10::Stream other = new_stream(device);
    wait_for(other, current_stream_of(device));
    const c10::StreamGuard guard(other);
    for (size_t i = 0; i < net->parameters().size(); i += 2) {
      accumulators.push_back(torch::autograd::impl::grad_accumulator(net->parameters()[i]));
    }
  }
  Training training(*net, group, options_of(course, *net), "SGD", course.sharded);
  std::optional<c10::StreamGuard> side;
  if (course.on_a_side_stream && !device.is_cpu()) {
    const c10::Stream stream = new_stream(device);
    wait_for(stream, current_stream_of(device));
    side.emplace(stream);
  }
  for (int step = 0; step < course.steps; ++step) {
    const bool fails = course.a_step_fails && step == 2;
    training.zero_grad(/*to_none=*/!course.zero_in_place);
    try {
      const auto throws = [](const at::Tensor& x) { return ThrowInBackward::apply(x, "on purpose"); };
      const at::Tensor batch = batch_of(step, group.rank, options);
      const at::Tensor out = fails && group.rank == 1 ? net->forward(batch, throws) : net->forward(batch);
      out.pow(2).mean().backward();
      training.ddp.finish_gradient_synchronization();
      EXPECT_FALSE(fails);
      if (course.clips) training.clip(1e-2);
      training.step();
    } catch (const StepError& error) {
      EXPECT_TRUE(fails);
      EXPECT_THAT(error.what(), HasSubstr("on purpose"));
    } catch (const OnPurpose&) {
      EXPECT_TRUE(fails);
    }
  }
  training.ddp.drain();
  if (side) wait_for(side->original_stream(), side->current_stream());  // the parameters' memory is that one's
  return copies(net->parameters());
}

// Two modules that ranks step in different orders, after an audit: autograd's thread of the device has then been seen to step for the
// thread that calls backward(). await_others: until they have been told, too, before this rank's connections go.
inline void expect_crossed_waits_to_be_told(const ProcessGroup& group, const std::function<void()>& await_others) {
  const at::TensorOptions options = at::TensorOptions(group.device).dtype(at::kFloat);
  LayeredNet nets[] = {LayeredNet(options), LayeredNet(options)};
  DataParallelOptions named;
  named.name = "A";
  DataParallel a(*nets[0], group, named);
  named.name = "B";
  DataParallel b(*nets[1], group, named);
  const at::Tensor batch = batch_of(0, group.rank, options);
  const auto step = [&](int which) { nets[which]->forward(batch).pow(2).mean().backward(); };
  for (const int which : {0, 1, 0, 1}) step(which);
  a.audit();
  EXPECT_THAT(loss_of([&] { step(group.rank); }), HasSubstr("rank 0 waits in step 2 of A, rank 1 in step 2 of B"));
  await_others();
}

// A step as a program writes it that knows nothing of other ranks.
inline void plain_step(LayeredNet& net, torch::optim::Optimizer& optimizer, const at::Tensor& batch) {
  optimizer.zero_grad();
  net->forward(batch).pow(2).mean().backward();
  optimizer.step();
}

inline void expect_near(const Tensors& ours, const Tensors& expected, double tolerance) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i].to(expected[i].scalar_type()), expected[i], tolerance, tolerance)) << "parameter " << i;
  }
}

}  // namespace firkin
