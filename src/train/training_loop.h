// The loop of a training: steps, evaluations, checkpoints, its log, and how it is asked to end.
#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "results/results.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace firkin {

// One line for every step, as training goes on. The first is read back, the second is for spreadsheets.
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kMetricsTable = "metrics.csv";

class MetricsLog {
 public:
  // Goes on in these files of `folder`: the lines of steps below `next_step` stay, what is behind them goes (steps that are taken again, a
  // line that a killed run did not finish). Makes the files when there are none. Throws RuntimeError when they cannot be written.
  MetricsLog(const std::filesystem::path& folder, int64_t next_step);

  // Those that stayed.
  const std::vector<TrainingRow>& earlier() const { return earlier_; }

  // Why a line was not written, the first time; training continues without it.
  std::optional<std::string> append(const TrainingRow& row);

 private:
  class GrowingFile {
   public:
    // With this content to begin with.
    GrowingFile(const std::filesystem::path& path, std::string_view content);
    // Why not, in words; empty: it is written.
    std::string append(std::string_view line);

   private:
    std::filesystem::path path_;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  };

  std::vector<TrainingRow> earlier_;
  GrowingFile lines_;
  GrowingFile table_;
  bool complained_ = false;
};

// What tells one job of torchrun from another: what it restarts is one run, however often, and with however many ranks.
struct RunId {
  std::string job;    // --rdzv-id; "none" unless it was given
  std::string agent;  // the torchrun that started this rank; each node has its own
};

// From torchrun's environment; nothing under another launcher, which restarts nobody.
std::optional<RunId> run_id_from_environment();

// How often torchrun has restarted the ranks of this node. It does not count restarts because a node has joined or left.
int restart_count();

// Whether both are the same run. A job with a name of its own is its name. Without one, the agent tells; of two agents on different nodes
// that is not known, and they are taken for one run if ours was restarted.
bool is_same_run(const RunId& stored, const RunId& ours, int restarts);

// For the head of a checkpoint, and back.
std::string text_of(const RunId& run);
RunId run_id_from(const std::string& text);

// What this run's ranks have left in the folder of checkpoints before torchrun restarted them, the newest that is whole; newer ones are
// named on standard error. Nothing: this is the beginning, or the folder is another run's. A job started once more, under the name of one
// that has done its `steps` or with another checkpoint to go on from, is another.
std::optional<NewestCheckpoint> checkpoint_of_this_run(const std::filesystem::path& folder, int64_t steps, bool goes_on_from_another);

// SIGTERM, SIGINT and SIGUSR1 (Slurm's --signal) as a wish: finish the step, write a checkpoint, end.
inline constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGUSR1};

// While it lives, the first of each of these signals is remembered, and the next ends the process. The parent of this process may have
// blocked them, so that none is lost before: they are unblocked in this thread. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool received() const;

 private:
  std::array<struct sigaction, kStopSignals.size()> previous_{};
};

// The same in the process that starts the ranks: while it lives, the first of these signals becomes a SIGUSR1 to each of its children, so
// that they end well; the next one does what it would have done. Make it before any other thread is started: it blocks these signals in
// those to come, and in children.
class PassedSignals {
 public:
  PassedSignals();
  ~PassedSignals();
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

 private:
  sigset_t previous_{};
  std::jthread waiter_;
};

struct LoopOptions {
  std::filesystem::path out = {};  // metrics.jsonl, checkpoints/
  int64_t steps = 0;
  int64_t evaluate_every = 50;  // steps; 0: only after the last
  int64_t evaluate_windows = 64;
  int64_t checkpoint_every = 50;  // steps; 0: only at the end
  int64_t keep = 3;               // newest checkpoints that stay
  int64_t print_every = 10;       // steps
  std::FILE* print_to = nullptr;  // rows for people; null: nowhere
};

class TrainingLoop {
 public:
  // about: of checkpoints. stops: whether this rank was asked to end. Opens metrics.jsonl on rank 0.
  TrainingLoop(LoopOptions options, Trainer& trainer, nlohmann::json about, std::function<bool()> stops);

  // Until all steps are done, or a rank was asked to end. Collective. Throws what Trainer::step() throws; checkpoints are written by then.
  void run();

  // On rank 0: what was done, this run and those before it.
  TrainingSection section() const;
  std::string last_words() const;
  // The checkpoint of the last step is not there, which was said.
  bool is_unsaved() const { return writer_ && writer_->last_failed(); }

 private:
  using Clock = std::chrono::steady_clock;

  bool speaks() const { return trainer_.group().rank == 0; }
  bool is_due(int64_t every) const;
  void save(std::optional<double> held_loss, TrainingRow& row);
  void record(const StepReport& report, TrainingRow row);
  void print_row(const TrainingRow& row);
  void say(const std::optional<std::string>& problem);

  LoopOptions options_;
  Trainer& trainer_;
  nlohmann::json about_;
  std::function<bool()> stops_;
  std::optional<MetricsLog> metrics_;
  std::optional<CheckpointWriter> writer_;
  std::vector<TrainingRow> rows_;  // with those of earlier runs
  size_t earlier_rows_ = 0;
  bool stopping_ = false;
  int64_t printed_rows_ = 0;
  Clock::time_point began_ = Clock::now();
  double run_s_ = 0;
};

}  // namespace firkin
