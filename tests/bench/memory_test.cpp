// Gradients exist once, counted in the allocator.

#include "../comm/thread_ranks.h"
#include "../torch.h"
#include "bench/step_memory.h"
#include "bench/torch_peer.h"
#include "firkin/ddp/data_parallel.h"
#include "model/transformer_config.h"
#include "small_workload.h"
#include "workload/transformer.h"

namespace firkin {
namespace {

constexpr int64_t kLayers = 8;
constexpr int64_t kWidth = 128;
constexpr int64_t kGradientBytes = kLayers * kWidth * kWidth * 4;

struct Use {
  int64_t between_steps = 0;
  int64_t peak = 0;
};

void step(DataParallel& /*ddp*/, const std::function<void()>& backward) {
  backward();
}

void step(TorchPeer& peer, const std::function<void()>& backward) {
  peer.prepare();
  backward();
  peer.rebuild_buckets();
}

// Bytes beyond the parameters in the fourth step, and after it. One rank: the count is of the whole process. `wrap` makes a DataParallel or
// a TorchPeer.
Use memory_of(const auto& wrap) {
  Use use;
  run_ranks(1, [&](const ProcessGroup& group) {
    TensorMemory memory;
    torch::nn::Sequential net;
    for (int64_t i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    const int64_t parameters = memory.now_bytes();
    auto wrapped = wrap(*net, group);
    for (int i = 0; i < 4; ++i) {
      memory.reset_peak();
      for (at::Tensor& p : net->parameters()) p.mutable_grad().reset();
      step(wrapped, [&net] { net->forward(at::ones({1, kWidth})).sum().backward(); });
    }
    use = {memory.now_bytes() - parameters, memory.peak_bytes() - parameters};
  });
  return use;
}

DataParallelOptions with_cap(std::string_view strategy, int64_t cap_bytes) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap.cap_bytes = cap_bytes;
  return options;
}

Use memory_of(const DataParallelOptions& options) {
  return memory_of([&](auto& net, const ProcessGroup& group) { return DataParallel(net, group, options); });
}

constexpr int64_t kLittle = kGradientBytes / 50;  // activations, small tensors

// Layers are used in the order in which they are registered, reversed: the first backward shows another order than was assumed, and the
// buckets are made anew.
TEST(Memory, NewBucketsAfterTheFirstStepAreMadeWhenTheOldOnesAreGone) {
  run_ranks(1, [](const ProcessGroup& group) {
    TensorMemory memory;
    torch::nn::ModuleList layers;
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    const int64_t parameters = memory.now_bytes();
    DataParallel ddp(*layers, group, with_cap("bucketed", 3 * kWidth * kWidth * 4));
    std::vector<Use> steps;
    for (int step = 0; step < 3; ++step) {
      layers->zero_grad();
      memory.reset_peak();
      at::Tensor x = at::ones({1, kWidth});
      for (size_t i = kLayers; i-- > 0;) x = layers[i]->as<torch::nn::Linear>()->forward(x);
      x.sum().backward();
      steps.push_back({memory.now_bytes() - parameters, memory.peak_bytes() - parameters});
    }
    EXPECT_EQ(ddp.ready_order().front(), 0);
    EXPECT_LE(steps[0].peak, 2 * kGradientBytes + kLittle);  // autograd's gradients beside the buckets: nothing is placed before the end
    for (const Use& step : steps) EXPECT_LE(step.between_steps, kGradientBytes + kLittle);
    for (size_t i : {1, 2}) EXPECT_LE(steps[i].peak, kGradientBytes + kGradientBytes / kLayers + kLittle) << i;
    fmt::print("gradients {} B; the most beyond parameters in the first three steps: {}, {}, {}; after them: {}, {}, {}\n", kGradientBytes,
               steps[0].peak, steps[1].peak, steps[2].peak, steps[0].between_steps, steps[1].between_steps, steps[2].between_steps);
  });
}

TEST(Memory, GradientsExistOnceBetweenSteps) {
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed"}) {
    SCOPED_TRACE(strategy);
    const Use use = memory_of(with_cap(strategy, 3 * kWidth * kWidth * 4));
    EXPECT_GE(use.between_steps, kGradientBytes);
    EXPECT_LE(use.between_steps, kGradientBytes + kLittle);
  }
}

TEST(Memory, WhenReadyBackwardAddsOneGradientAtATime) {
  const Use use = memory_of(with_cap("bucketed", 3 * kWidth * kWidth * 4));
  EXPECT_LE(use.peak, kGradientBytes + kGradientBytes / kLayers + kLittle);
}

TEST(Memory, AtMostThatOfTheReducerWithItsBucketViews) {
  const Use ours = memory_of(with_cap("bucketed", kWidth * kWidth * 4));
  const Use torchs =
      memory_of([](auto& net, const ProcessGroup& group) { return TorchPeer(net, group, with_cap("torch", kWidth * kWidth * 4)); });
  EXPECT_LE(ours.between_steps, torchs.between_steps + kLittle);
  EXPECT_LE(ours.peak, torchs.peak + kLittle);
}

Workload language_model(const TransformerConfig& config, int64_t batch, int64_t sequence, at::ScalarType dtype) {
  TransformerLM model(config, at::TensorOptions(dtype));
  const at::Tensor tokens = at::zeros({batch, sequence}, at::kLong);
  return workload_of(model.ptr(),
                     [model, tokens](int64_t /*step*/) mutable { return language_model_loss(model->forward(tokens), tokens); });
}

struct Shape {
  const char* name;
  TransformerConfig config;
  int64_t batch;
  int64_t sequence;
  at::ScalarType dtype = at::kFloat;
};

TransformerConfig config_of(ModelFamily family, int64_t d_model, int64_t layers, int64_t vocabulary, bool tied) {
  return {.family = family,
          .vocab_size = vocabulary,
          .context_length = 256,
          .d_model = d_model,
          .d_ff = 4 * d_model,
          .num_layers = layers,
          .num_heads = d_model / 32,
          .tied = tied};
}

const std::array kShapes = {
    Shape{"wide", config_of(ModelFamily::kCs336, 256, 3, 500, false), 2, 64},
    Shape{"long", config_of(ModelFamily::kCs336, 96, 4, 300, false), 2, 256},
    Shape{"vocabulary", config_of(ModelFamily::kCs336, 64, 2, 8000, false), 2, 128},
    Shape{"gpt2", config_of(ModelFamily::kGpt2, 128, 4, 500, true), 4, 128},
    Shape{"gpt2_long", config_of(ModelFamily::kGpt2, 64, 6, 500, true), 4, 256},
    Shape{"bf16", config_of(ModelFamily::kCs336, 128, 4, 500, false), 4, 128, at::kBFloat16},
};

class MemoryEstimates : public testing::TestWithParam<Shape> {};

TEST_P(MemoryEstimates, AreWithin15PercentOfWhatIsMeasured) {
  run_ranks(1, [](const ProcessGroup& group) {
    const Shape& shape = GetParam();
    Workload workload = language_model(shape.config, shape.batch, shape.sequence, shape.dtype);
    const auto measured = static_cast<double>(measure_step_memory(group, workload, with_cap("bucketed", 1 << 20)).peak_bytes);
    const MemoryEstimate estimate =
        estimate_training_memory(shape.config, shape.batch, shape.sequence, static_cast<int64_t>(c10::elementSize(shape.dtype)));
    // Autograd hands over one gradient at a time; the others are in their buckets.
    EXPECT_NEAR(static_cast<double>(estimate.parameters + estimate.gradients + estimate.activations) / measured, 1, 0.15)
        << estimate.activations << " of activations; measured " << measured;
    const auto after_backward = static_cast<double>(measure_step_memory(group, workload, with_cap("flat", 1 << 20)).peak_bytes);
    EXPECT_NEAR(static_cast<double>(estimate.total()) / after_backward, 1, 0.15) << "measured " << after_backward;
  });
}

const auto name_of_shape = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Small, MemoryEstimates, Values(kShapes[0], kShapes[3]), name_of_shape);
INSTANTIATE_TEST_SUITE_P(Full, MemoryEstimates, ValuesIn(kShapes), name_of_shape);

TEST(StepMemory, OfARankAloneHasNoBuckets) {
  const TransformerConfig config = kShapes[0].config;
  Workload workload = language_model(config, 1, 8, at::kFloat);
  const StepMemory memory = measure_local_step_memory(workload);
  const int64_t parameters = estimate_training_memory(config, 1, 8, 4).parameters;
  EXPECT_GE(memory.between_steps_bytes, 2 * parameters);
  EXPECT_LE(memory.between_steps_bytes, 2 * parameters + parameters / 50);
  EXPECT_GE(memory.peak_bytes, memory.between_steps_bytes);
  for (const at::Tensor& parameter : workload.parameters) EXPECT_FALSE(parameter.grad().defined());
}

}  // namespace
}  // namespace firkin
