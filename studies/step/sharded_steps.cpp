// Steps under the strategies bucketed, ordered and sharded in turn, what their optimisers keep on each rank, and a step's most memory.
//
//   cmake --build build --target sharded_steps
//   lab/run --rate 1gbit -- build/studies/sharded_steps
//   build/studies/sharded_steps --ranks 2
//   build/studies/sharded_steps --ranks 4 memory      the memory alone: no clock, so any load will do
//
// The demo model and AdamW, caps of 1 MiB. A block is some steps of one strategy until all its parameters are there; every strategy has its
// own copy of the model. What is asked of sharded: over 1 Gbit/s at most 1.05 of ordered's time, without a limit 1.03 of bucketed's.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "bench/step_memory.h"
#include "comm/across_ranks.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "firkin/stats/estimates.h"
#include "workload/transformer.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int kBlocks = 24;
constexpr int kSteps = 4;   // of a block
constexpr int kWarmUp = 8;  // ordered has its launch order then
constexpr int64_t kSequence = 128;

DataParallelOptions options_of(const std::string& strategy) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap.cap_bytes = kMiB;
  return options;
}

class Training {
 public:
  Training(const ProcessGroup& group, const std::string& strategy)
      : net_(TransformerLM(find_model("demo").config)),
        tokens_(at::randint(256, {1, kSequence + 1}, at::kLong)),
        ddp_(*net_, group, options_of(strategy)) {
    if (strategy == "sharded") {
      sharded_.emplace(ddp_, [](const std::vector<NamedTensor>& parts) {
        return std::make_unique<torch::optim::AdamW>(tensors_of(parts), torch::optim::AdamWOptions(1e-4));
      });
    } else {
      whole_ = std::make_unique<torch::optim::AdamW>(net_->parameters(), torch::optim::AdamWOptions(1e-4));
      overlapped_.emplace(ddp_, *whole_);
    }
  }

  // Seconds a step.
  double run(int steps) {
    const auto started = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; ++step) {
      if (whole_) whole_->zero_grad();
      language_model_loss(net_->forward(tokens_.narrow(1, 0, kSequence)), tokens_.narrow(1, 1, kSequence)).backward();
      sharded_ ? sharded_->step() : overlapped_->step();
    }
    ddp_.drain();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count() / steps;
  }

  double state_bytes() {
    torch::optim::Optimizer& optimizer = sharded_ ? sharded_->optimizer() : *whole_;
    double bytes = 0;
    for (const auto& [tensor, state] : optimizer.state()) {
      const auto& moments = dynamic_cast<const torch::optim::AdamWParamState&>(*state);
      bytes += static_cast<double>(moments.exp_avg().nbytes() + moments.exp_avg_sq().nbytes());
    }
    return bytes;
  }

 private:
  TransformerLM net_;
  at::Tensor tokens_;
  std::unique_ptr<torch::optim::Optimizer> whole_;
  DataParallel ddp_;
  std::optional<OverlappedOptimizer> overlapped_;
  std::optional<ShardedOptimizer> sharded_;
};

// Bytes of all tensors, on the rank with most: parameters, gradients, buckets, state, activations.
void print_memory(const ProcessGroup& group, const std::string& strategy) {
  TensorMemory memory;
  torch::manual_seed(0);
  Training training(group, strategy);
  training.run(kWarmUp);
  const auto kept = static_cast<double>(memory.now_bytes());
  memory.reset_peak();
  training.run(kSteps);
  const std::vector<double> most = max_over_ranks(group, {static_cast<double>(memory.peak_bytes()), kept, training.state_bytes()});
  if (group.rank != 0) return;
  fmt::print("{:9} {} ranks: at most {} in a step, {} between steps, of it {} of state\n", strategy, group.size,
             format_bytes(static_cast<int64_t>(most[0])), format_bytes(static_cast<int64_t>(most[1])),
             format_bytes(static_cast<int64_t>(most[2])));
}

int measure(const ProcessGroup& group, bool memory_alone) {
  at::set_num_threads(1);
  const std::vector<std::string> strategies = {"bucketed", "ordered", "sharded"};
  for (const std::string& strategy : strategies) print_memory(group, strategy);
  if (memory_alone) return 0;
  torch::manual_seed(0);
  std::vector<std::unique_ptr<Training>> trainings;
  std::vector<std::vector<double>> step_s(strategies.size());
  for (const std::string& strategy : strategies) {
    trainings.push_back(std::make_unique<Training>(group, strategy));
    trainings.back()->run(kWarmUp);
  }
  for (size_t block = 0; block < kBlocks; ++block) {
    for (size_t i = 0; i < strategies.size(); ++i) {
      const size_t turn = (block + i) % strategies.size();
      step_s[turn].push_back(trainings[turn]->run(kSteps));
    }
  }
  if (group.rank != 0) return 0;
  for (size_t i = 0; i < strategies.size(); ++i) {
    const PairedRatio ratio = paired_ratio(step_s[i], step_s[0]);
    fmt::print("{:9} {:>8} a step, {:.3f} ({:.3f} to {:.3f}) of bucketed's; optimiser's state on rank 0: {}\n", strategies[i],
               format_seconds(median(step_s[i])), ratio.ratio, ratio.interval.low, ratio.interval.high,
               format_bytes(static_cast<int64_t>(trainings[i]->state_bytes())));
  }
  const PairedRatio ratio = paired_ratio(step_s[2], step_s[1]);
  fmt::print("sharded {:.3f} ({:.3f} to {:.3f}) of ordered's\n", ratio.ratio, ratio.interval.low, ratio.interval.high);
  return 0;
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>& words) {
    return measure(group, !words.empty() && words[0] == "memory");
  });
}
