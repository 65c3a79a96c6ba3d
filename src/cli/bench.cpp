// firkin bench: the experiments, one subcommand each.
#include <array>

#include "command.h"

namespace firkin::cli {

Run declare_bench_allreduce(CLI::App& app);
Run declare_bench_chunks(CLI::App& app);
Run declare_bench_layers(CLI::App& app);
Run declare_bench_step(CLI::App& app);

Run declare_bench(CLI::App& app) {
  static constexpr std::array kExperiments = {
      Command{"step", "training steps under several strategies and caps, beside c10d::Reducer", declare_bench_step},
      Command{"allreduce", "the time of an all-reduce by size, isolated and queued back to back", declare_bench_allreduce},
      Command{"chunks", "the same data in chunks of different size: DDP paper, Figure 2", declare_bench_chunks},
      Command{"layers", "forward and backward time of every layer; ready time of every tensor", declare_bench_layers},
  };
  return add_commands(app, kExperiments);
}

}  // namespace firkin::cli
