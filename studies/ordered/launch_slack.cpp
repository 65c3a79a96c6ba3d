// The step of `ordered` under launch orders of given slacks, and under the one that it chooses.
//
//   cmake --build build --target launch_slack
//   lab/run --rate 1gbit -- build/studies/launch_slack 40
//
// The argument is a number of steps before the first block: 0 for a cold process. What is asked of the choice: the bottom of the curve.
// Every setting is wrapped anew in every block, and takes the steps in which it learns; blocks are in random order. The demo model, batch
// 1, sequence 128, buckets of 0.5 MiB.
#include <fmt/format.h>

#include <memory>

#include "bench/step_bench.h"
#include "bench/step_runner.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/stats/estimates.h"
#include "workload/transformer.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int kBlocks = 10;
constexpr int kSteps = 4;  // timed, per block
constexpr int64_t kSequence = 128;

Workload make_workload(int rank) {
  torch::manual_seed(0);
  TransformerLM model(find_model("demo").config);
  torch::manual_seed(1 + static_cast<uint64_t>(rank));
  const at::Tensor tokens = at::randint(256, {1, kSequence}, at::kLong);
  Workload workload;
  workload.module = model.ptr();
  workload.parameters = model->parameters();
  workload.loss = [model, tokens](int64_t /*step*/) mutable { return language_model_loss(model->forward(tokens), tokens); };
  workload.optimizer = std::make_shared<torch::optim::SGD>(workload.parameters, 0.01);
  return workload;
}

StepSetting setting(const std::string& name, std::string_view strategy, std::optional<double> slack = {}) {
  StepSetting result{.name = name, .options = {}};
  result.options.strategy = find_strategy(strategy);
  result.options.cap.cap_bytes = kMiB / 2;
  result.options.launch_slack = slack;
  return result;
}

void measure(const ProcessGroup& group, int warmup_steps) {
  at::set_num_threads(1);
  Workload workload = make_workload(group.rank);
  std::vector<StepSetting> settings = {setting("bucketed", "bucketed"), setting("ordered", "ordered")};
  for (const double slack : {0.0, 0.4, 0.7, 1.0, 1.3, 1.7, 2.5, 4.0}) {
    settings.push_back(setting(fmt::format("ordered, slack {}", slack), "ordered", slack));
  }
  if (warmup_steps > 0) {
    StepRunner warm(group, workload, settings[0].options);
    for (int i = 0; i < warmup_steps; ++i) warm.step(i);
    warm.drain();
  }
  const std::vector<SettingSteps> result =
      measure_steps(group, workload, settings, {.blocks = {.most = kBlocks, .seed = 0}, .steps = {.timed_steps = kSteps}});
  if (group.rank != 0) return;
  fmt::print("after {} steps\n{:20} {:>9} {:>30}\n", warmup_steps, "", "step", "of bucketed");
  for (size_t i = 0; i < settings.size(); ++i) {
    const PairedRatio ratio = paired_ratio(result[i].step_s, result[0].step_s);
    const std::string interval = fmt::format("{:.3f} [{:.3f}, {:.3f}]", ratio.ratio, ratio.interval.low, ratio.interval.high);
    fmt::print("{:20} {:>9} {:>30}\n", settings[i].name, format_seconds(median(result[i].step_s)), interval);
  }
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>& words) {
    measure(group, words.empty() ? 40 : std::stoi(words[0]));
    return 0;
  });
}
