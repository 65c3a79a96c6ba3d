#include <array>

#include "command.h"

namespace firkin::cli {

// One line per file of this folder.
#ifdef FIRKIN_WITH_TORCH
Run declare_bench(CLI::App& app);
Run declare_buckets(CLI::App& app);
Run declare_models(CLI::App& app);
Run declare_sample(CLI::App& app);
Run declare_trace(CLI::App& app);
Run declare_train(CLI::App& app);
Run declare_tune(CLI::App& app);
#endif
Run declare_predict(CLI::App& app);
Run declare_import(CLI::App& app);
Run declare_compare(CLI::App& app);
Run declare_report(CLI::App& app);
Run declare_completions(CLI::App& app);

std::span<const Command> commands() {
  static constexpr std::array kCommands = {
#ifdef FIRKIN_WITH_TORCH
      Command{"tune", "find the best bucket size: measure, predict, verify, report", declare_tune},
      Command{"train", "train a model on any text, with checkpoints to go on from", declare_train},
      Command{"sample", "text from a model that firkin train has trained", declare_sample},
      Command{"bench", "one experiment: steps, all-reduce by size, chunks, layers", declare_bench},
      Command{"trace", "training steps as Chrome traces, with overlap figures", declare_trace},
      Command{"buckets", "the bucket assignment of a model or of a tensors.csv", declare_buckets},
      Command{"models", "the named models: parameters, tensors, gradient bytes", declare_models},
#endif
      Command{"predict", "backward time, best cap and best plan, from two CSV files", declare_predict},
      Command{"import", "other people's measurements as tensors.csv and allreduce.csv", declare_import},
      Command{"compare", "two results.json of one subcommand: what differs, and is it real", declare_compare},
      Command{"report", "results.json -> report.html, and charts as images", declare_report},
      Command{"completions", "the completion script for bash, zsh or fish", declare_completions},
  };
  return kCommands;
}

}  // namespace firkin::cli
