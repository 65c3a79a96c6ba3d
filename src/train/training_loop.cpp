#include "train/training_loop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <sstream>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"

namespace firkin {
namespace {

std::vector<TrainingRow> rows_below(const std::filesystem::path& file, int64_t next_step) {
  std::vector<TrainingRow> rows;
  if (next_step == 0 || !std::filesystem::exists(file)) return rows;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    try {
      auto row = from_json<TrainingRow>(parse_json(line, file.string(), "a step of a training"), "");
      if (row.step < next_step) rows.push_back(std::move(row));
    } catch (const std::exception&) {
      break;  // not finished
    }
  }
  return rows;
}

template <typename LineOf>
std::string lines_of_rows(const std::vector<TrainingRow>& rows, LineOf line_of) {
  std::string text;
  for (const TrainingRow& row : rows) text += line_of(row);
  return text;
}

std::string metrics_json_line(const TrainingRow& row) {
  return dump_json(json_of(row)) + "\n";
}

std::string metrics_csv_line(const TrainingRow& row) {
  return csv_lines(csv_line(row), {});
}

}  // namespace

MetricsLog::GrowingFile::GrowingFile(const std::filesystem::path& path, std::string_view content)
    : path_(path), file_(nullptr, &std::fclose) {
  write_file_atomically(path, content);
  file_.reset(std::fopen(path.c_str(), "ae"));
  if (!file_) throw RuntimeError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
}

std::string MetricsLog::GrowingFile::append(std::string_view line) {
  errno = 0;
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0) return "";
  return fmt::format("{}: {}", path_.string(), std::strerror(errno));
}

MetricsLog::MetricsLog(const std::filesystem::path& folder, int64_t next_step)
    : earlier_(rows_below(folder / kMetricsFile, next_step)),
      lines_(folder / kMetricsFile, lines_of_rows(earlier_, metrics_json_line)),
      table_(folder / kMetricsTable, csv_lines(csv_names<TrainingRow>(), {}) + lines_of_rows(earlier_, metrics_csv_line)) {}

std::optional<std::string> MetricsLog::append(const TrainingRow& row) {
  const std::string of_lines = lines_.append(metrics_json_line(row));
  const std::string of_table = table_.append(metrics_csv_line(row));
  const std::string& problem = of_lines.empty() ? of_table : of_lines;
  if (problem.empty() || complained_) return std::nullopt;
  complained_ = true;
  return fmt::format("metrics are missing from step {} on, training continues; {}", row.step, problem);
}

namespace {

constexpr std::string_view kNoName = "none";  // torchrun's own default
constexpr const char* kRunKey = "run";        // in a checkpoint: which run wrote it

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string node_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// "host:/tmp/torchelastic_x/none_y" -> "host"
std::string_view node_of(std::string_view agent) {
  return agent.substr(0, agent.find(':'));
}

}  // namespace

std::optional<RunId> run_id_from_environment() {
  RunId run{.job = variable("TORCHELASTIC_RUN_ID"), .agent = ""};
  if (run.job.empty()) return std::nullopt;
  // The folder that each torchrun makes for itself, with a part for each restart: .../attempt_1/0/error.json
  const std::string errors = variable("TORCHELASTIC_ERROR_FILE");
  run.agent = fmt::format("{}:{}", node_name(), errors.substr(0, std::min(errors.size(), errors.rfind("/attempt_"))));
  return run;
}

int restart_count() {
  return std::atoi(variable("TORCHELASTIC_RESTART_COUNT").c_str());
}

bool is_same_run(const RunId& stored, const RunId& ours, int restarts) {
  if (stored.job != ours.job) return false;
  if (ours.job != kNoName || stored.agent == ours.agent) return true;
  return restarts > 0 && node_of(stored.agent) != node_of(ours.agent);
}

std::string text_of(const RunId& run) {
  return fmt::format("{}@{}", run.job, run.agent);
}

RunId run_id_from(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return {.job = text, .agent = ""};
  return {.job = text.substr(0, at), .agent = text.substr(at + 1)};
}

std::optional<NewestCheckpoint> checkpoint_of_this_run(const std::filesystem::path& folder, int64_t steps, bool goes_on_from_another) {
  const std::optional<RunId> ours = run_id_from_environment();
  if (!ours) return std::nullopt;
  std::vector<std::string> problems;
  auto newest = read_newest_checkpoint(folder, problems);
  if (newest) {
    const auto& [step, held_loss, about] = newest->checkpoint.head;
    const bool names_run = about.is_object() && about.contains(kRunKey) && about[kRunKey].is_string();
    const RunId theirs = run_id_from(names_run ? about[kRunKey].get<std::string>() : "");
    if (!is_same_run(theirs, *ours, restart_count())) return std::nullopt;
    const bool may_be_new = restart_count() == 0 && theirs.agent != ours->agent;
    if (may_be_new && (step >= steps || goes_on_from_another)) return std::nullopt;
  }
  for (const std::string& problem : problems) fmt::print(stderr, "firkin: {}\n", problem);
  return newest;
}

namespace {

std::atomic<bool> received_one = false;
static_assert(std::atomic<bool>::is_always_lock_free);

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  return set;
}

// Of the main thread, which starts the ranks. Empty where the kernel does not say.
std::vector<pid_t> children() {
  std::ifstream in(fmt::format("/proc/self/task/{}/children", getpid()));
  std::vector<pid_t> found;
  for (pid_t child = 0; in >> child;) found.push_back(child);
  return found;
}

void wait_for_signals(const std::stop_token& stop) {
  const sigset_t set = stop_signals();
  bool passed = false;
  while (!stop.stop_requested()) {
    const timespec patience{.tv_sec = 0, .tv_nsec = 200'000'000};
    const int signal = sigtimedwait(&set, nullptr, &patience);
    if (signal < 0) continue;
    const std::vector<pid_t> ranks = children();
    if (passed || ranks.empty()) {
      pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      kill(getpid(), signal);
      return;
    }
    fmt::print(stderr, "\nfirkin: {}; the ranks finish the current step\n", strsignal(signal));
    for (const pid_t rank : ranks) kill(rank, SIGUSR1);
    passed = true;
  }
}

}  // namespace

StopSignals::StopSignals() {
  received_one = false;
  struct sigaction action {};
  action.sa_handler = [](int) { received_one = true; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &action, &previous_[i]);
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &previous_[i], nullptr);
}

bool StopSignals::received() const {
  return received_one;
}

PassedSignals::PassedSignals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
  waiter_ = std::jthread(wait_for_signals);
}

PassedSignals::~PassedSignals() {
  waiter_.request_stop();
  waiter_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

namespace {

constexpr int64_t kRowsBetweenHeadings = 20;
constexpr size_t kRowsOfAResult = 1000;
constexpr size_t kRecent = 20;  // steps that tokens/s and ETA are taken from

TrainingRow row_of(const StepReport& report, int64_t tokens) {
  TrainingRow row{.step = report.step, .learning_rate = report.learning_rate};
  if (std::isfinite(report.loss)) row.loss = report.loss;
  if (report.gradient_norm && std::isfinite(*report.gradient_norm)) row.gradient_norm = report.gradient_norm;
  row.tokens_per_s = static_cast<double>(tokens) / report.step_s;
  row.step_s = report.step_s;
  row.exposed_s = report.exposed_s;
  row.data_s = report.data_s;
  if (!report.skipped.empty()) row.skipped = report.skipped;
  return row;
}

// "-" where there is none.
std::string text_or_dash(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string clock_text(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

double sum_of(const std::vector<TrainingRow>& rows, size_t first, double TrainingRow::*member) {
  double sum = 0;
  for (size_t i = first; i < rows.size(); ++i) sum += rows[i].*member;
  return sum;
}

}  // namespace

TrainingLoop::TrainingLoop(LoopOptions options, Trainer& trainer, nlohmann::json about, std::function<bool()> stops)
    : options_(std::move(options)), trainer_(trainer), about_(std::move(about)), stops_(std::move(stops)) {
  if (!speaks()) return;
  if (const auto run = run_id_from_environment()) about_[kRunKey] = text_of(*run);
  metrics_.emplace(options_.out, trainer.next_step());
  writer_.emplace(options_.out / kCheckpointFolder, options_.keep);
  rows_ = metrics_->earlier();
  earlier_rows_ = rows_.size();
}

// Whether what happens every so many steps happens now.
bool TrainingLoop::is_due(int64_t every) const {
  const int64_t done = trainer_.next_step();
  return done >= options_.steps || (every > 0 && done % every == 0);
}

void TrainingLoop::run() {
  began_ = Clock::now();
  while (trainer_.next_step() < options_.steps && !stopping_) {
    const StepReport report = trainer_.step(stops_());
    stopping_ = report.stop;
    TrainingRow row = row_of(report, trainer_.tokens_per_step());
    if (is_due(options_.evaluate_every)) row.held_loss = trainer_.evaluate(options_.evaluate_windows);
    if (stopping_ || is_due(options_.checkpoint_every)) {
      trainer_.gather_optimizer();
      if (speaks()) save(row.held_loss, row);
      trainer_.release_optimizer();
    }
    if (speaks()) record(report, std::move(row));
  }
  run_s_ = std::chrono::duration<double>(Clock::now() - began_).count();
  if (!writer_) return;
  writer_->wait();
  say(writer_->problem());
}

void TrainingLoop::save(std::optional<double> held_loss, TrainingRow& row) {
  const auto before = Clock::now();
  if (held_loss && !std::isfinite(*held_loss)) held_loss.reset();
  Checkpoint checkpoint;
  checkpoint.head = {.step = trainer_.next_step(), .held_loss = held_loss, .about = about_};
  checkpoint.tensors = copy_of_training(trainer_);
  writer_->write(std::move(checkpoint));
  row.checkpoint_s = std::chrono::duration<double>(Clock::now() - before).count();
}

void TrainingLoop::record(const StepReport& report, TrainingRow row) {
  say(metrics_->append(row));
  say(writer_->problem());
  if (!report.skipped.empty()) say(report.skipped + "; the step is skipped");
  rows_.push_back(std::move(row));
  const bool is_last = trainer_.next_step() >= options_.steps || stopping_;
  if (report.step % options_.print_every == 0 || rows_.back().held_loss || is_last) print_row(rows_.back());
}

void TrainingLoop::print_row(const TrainingRow& row) {
  std::FILE* out = options_.print_to;
  if (!out) return;
  if (printed_rows_++ % kRowsBetweenHeadings == 0) {
    fmt::print(out, "{:>8} {:>8} {:>8} {:>10} {:>8} {:>9} {:>8} {:>8}\n", "step", "loss", "held", "lr", "norm", "tokens/s", "exposed",
               "ETA");
  }
  const size_t first = std::max(earlier_rows_, rows_.size() - std::min(rows_.size(), kRecent));
  const auto steps = static_cast<double>(rows_.size() - first);
  const double step_s = sum_of(rows_, first, &TrainingRow::step_s) / steps;
  const double exposed = sum_of(rows_, first, &TrainingRow::exposed_s) / steps / step_s;
  const double left_s = step_s * static_cast<double>(options_.steps - row.step - 1);
  fmt::print(out, "{:>8} {:>8} {:>8} {:>10.2e} {:>8} {:>9.0f} {:>7.1f}% {:>8}\n", row.step, text_or_dash(row.loss, 4),
             text_or_dash(row.held_loss, 4), row.learning_rate, text_or_dash(row.gradient_norm, 3),
             static_cast<double>(trainer_.tokens_per_step()) / step_s, 100 * exposed, clock_text(left_s));
  std::fflush(out);
}

void TrainingLoop::say(const std::optional<std::string>& problem) {
  if (problem) fmt::print(stderr, "firkin: {}\n", *problem);
}

TrainingSection TrainingLoop::section() const {
  TrainingSection section{
      .steps = trainer_.next_step(), .planned_steps = options_.steps, .tokens_per_step = trainer_.tokens_per_step(), .last_loss = {}};
  for (const TrainingRow& row : rows_) {
    if (row.loss) section.last_loss = row.loss;
    if (!row.held_loss) continue;
    section.last_held_loss = row.held_loss;
    section.best_held_loss = std::min(section.best_held_loss.value_or(*row.held_loss), *row.held_loss);
  }
  section.rows = thinned(rows_, kRowsOfAResult);
  const double steps_s = sum_of(rows_, earlier_rows_, &TrainingRow::step_s);
  if (rows_.size() == earlier_rows_ || steps_s <= 0) return section;
  const auto steps = static_cast<double>(rows_.size() - earlier_rows_);
  section.tokens_per_s = steps * static_cast<double>(section.tokens_per_step) / steps_s;
  section.exposed_share = sum_of(rows_, earlier_rows_, &TrainingRow::exposed_s) / steps_s;
  section.data_share = sum_of(rows_, earlier_rows_, &TrainingRow::data_s) / steps_s;
  double checkpoint_s = 0;
  for (size_t i = earlier_rows_; i < rows_.size(); ++i) checkpoint_s += rows_[i].checkpoint_s.value_or(0);
  section.checkpoint_share = checkpoint_s / std::max(run_s_, steps_s);
  return section;
}

std::string TrainingLoop::last_words() const {
  const TrainingSection done = section();
  std::string text = fmt::format("\n{} of {} steps", done.steps, done.planned_steps);
  if (done.last_loss) text += fmt::format(", loss {:.4f}", *done.last_loss);
  if (done.last_held_loss) text += fmt::format(", held {:.4f}", *done.last_held_loss);
  if (done.tokens_per_s) {
    text += fmt::format("; {:.0f} tokens/s; exposed communication {:.1f} %, checkpoints {:.2f} %, data {:.2f} % of the time",
                        *done.tokens_per_s, 100 * *done.exposed_share, 100 * *done.checkpoint_share, 100 * *done.data_share);
  }
  text += ".\n";
  if (stopping_) text += "Stopped early, as requested; --resume continues.\n";
  const std::vector<StoredCheckpoint> stored = list_checkpoints(options_.out / kCheckpointFolder);
  if (!stored.empty()) text += fmt::format("Newest of {} checkpoints: {}\n", stored.size(), stored.back().file.string());
  return text;
}

}  // namespace firkin
