// Steps whose gradients are known: a module that is parameters and nothing else, on two ranks.
#pragma once

#include "../torch.h"
#include "autograd_functions.h"
#include "training.h"

namespace firkin {

// A value that differs between the ranks; and its mean over two of them.
inline double rank_value(const ProcessGroup& group) {
  return group.rank + 1.0;
}
inline constexpr double kMean = 1.5;

struct Parameters : torch::nn::Module {
  Parameters() = default;
  // p0, p1, ...: ones, so many each.
  explicit Parameters(const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) add(fmt::format("p{}", all.size()), at::ones({size}));
  }
  at::Tensor add(const std::string& name, const at::Tensor& value, bool trainable = true) {
    all.push_back(register_parameter(name, value, trainable));
    return all.back();
  }
  // All gradients are `gradient` everywhere.
  at::Tensor loss(double gradient) const {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : all) {
      if (parameter.requires_grad()) sum = sum + (parameter * gradient).sum().to(at::kDouble);
    }
    return sum;
  }
  // Backward throws this, once the last parameter has its gradient.
  at::Tensor broken_loss(const std::string& text = "broken on purpose") const {
    const at::Tensor broken = ThrowInBackward::apply(all.front().sum(), text);
    return broken + (all.back() * 1.0).sum();
  }
  void expect_gradients(double value) const {
    for (const at::Tensor& parameter : all) {
      if (parameter.requires_grad()) {
        EXPECT_TRUE(at::equal(parameter.grad(), at::full_like(parameter, value))) << parameter.grad();
      }
    }
  }
  void expect_no_gradients() const {
    for (const at::Tensor& parameter : all) EXPECT_FALSE(parameter.grad().defined());
  }
  Tensors all;
};

struct TwoParameters : Parameters {
  at::Tensor a = add("a", at::ones({4}));
  at::Tensor b = add("b", at::ones({4}));
};

// The end of a step, if backward is none.
inline void synchronise(DataParallel& ddp, const at::Tensor& loss) {
  loss.backward();
  ddp.finish_gradient_synchronization();  // does nothing where backward has done it
}

// What the step throws as a StepError.
inline std::optional<StepFailure> failure_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const StepError& error) {
    return error.failure();
  }
  return std::nullopt;
}

// Under every strategy that all-reduces, with steps that end with backward and steps that end by hand.
inline void on_ranks(int ranks, const std::function<void(const ProcessGroup&, const DataParallelOptions&)>& body) {
  run_ranks(ranks, [&](const ProcessGroup& group) {
    for (const char* strategy : {"naive", "flat", "overlap", "bucketed"}) {
      for (const bool finish_with_backward : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, finish_with_backward {}, rank {}", strategy, finish_with_backward, group.rank));
        DataParallelOptions options = with_strategy(strategy, /*cap_bytes=*/24);
        options.finish_with_backward = finish_with_backward;
        body(group, options);
      }
    }
  });
}
inline void on_two_ranks(const std::function<void(const ProcessGroup&, const DataParallelOptions&)>& body) {
  on_ranks(2, body);
}

}  // namespace firkin
