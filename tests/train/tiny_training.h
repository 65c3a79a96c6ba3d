// A training that steps in milliseconds: a transformer of two blocks on a text that repeats itself.
#pragma once

#include <memory>
#include <string>

#include "../base/temporary_folder.h"
#include "model/transformer.h"
#include "train/trainer.h"

#include <torch/torch.h>

namespace firkin {

inline constexpr TransformerConfig kTinyModel = {
    .family = ModelFamily::kCs336, .vocab_size = 128, .context_length = 16, .d_model = 16, .d_ff = 32, .num_layers = 2, .num_heads = 2};

struct TinyTraining {
  TinyTraining() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog; " + std::to_string(i * i) + "\n";
    folder.write("text.txt", text);
    settings.batch = 8;
    settings.schedule = {.kind = ScheduleKind::kCosine, .peak = 3e-3, .warmup_steps = 5, .steps = 50};
  }

  TrainingData data(uint64_t seed = 7) const { return split_data(std::make_shared<TokenFile>(folder.path / "text.txt"), 16, seed, 0.1); }

  static TransformerLM model() {
    torch::manual_seed(1);
    return TransformerLM(kTinyModel);
  }

  std::unique_ptr<Trainer> trainer(const ProcessGroup& group, const TransformerLM& net, const std::string& strategy = "bucketed") const {
    DataParallelOptions options;
    options.strategy = find_strategy(strategy);
    options.cap.cap_bytes = 4096;
    auto loss = [net = net](const TokenBatch& batch) mutable { return language_model_loss(net->forward(batch.tokens), batch.targets); };
    return std::make_unique<Trainer>(group, net.ptr(), loss, data(), settings, options);
  }

  TemporaryFolder folder;
  TrainSettings settings;
};

}  // namespace firkin
