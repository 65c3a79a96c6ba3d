// The steps of a training, as lines of metrics.jsonl and as a section of results.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/field.h"

namespace firkin {

inline constexpr const char* kHeldLossKey = "held_loss";  // in a checkpoint, too

// One step. Times are rank 0's, in seconds. A loss that is no finite number is absent.
struct TrainingRow {
  int64_t step = 0;
  std::optional<double> loss = {};       // mean over the step's tokens, before the update
  std::optional<double> held_loss = {};  // of the held part, after the update
  double learning_rate = 0;
  std::optional<double> gradient_norm = {};  // before clipping
  std::optional<double> tokens_per_s = {};   // of all ranks
  double step_s = 0;
  double exposed_s = 0;                     // of it: waiting for gradients
  double data_s = 0;                        // of it: reading samples
  std::optional<double> checkpoint_s = {};  // after it: copying the state, and waiting for the writer
  std::optional<std::string> skipped = {};  // why the step was left out
};

// What a training came to.
struct TrainingSection {
  int64_t steps = 0;  // done, with those before --resume
  int64_t planned_steps = 0;
  int64_t tokens_per_step = 0;
  std::optional<double> last_loss = {}, last_held_loss = {}, best_held_loss = {};
  std::optional<double> tokens_per_s = {};                                           // of this run
  std::optional<double> exposed_share = {}, data_share = {}, checkpoint_share = {};  // of this run's time
  std::vector<TrainingRow> rows = {};                                                // all, or evenly spaced ones
};

// One line of metrics.jsonl, without its end.
std::string metrics_line(const TrainingRow& row);

// metrics.csv, for spreadsheets: the line of headings, and the line of a step; both ended. Absent values are empty.
std::string metrics_csv_names();
std::string metrics_csv_line(const TrainingRow& row);

// Throws FieldError.
TrainingRow read_training_row(const JsonFields& fields);

// Of a long training, about `most`: every n-th, those with a held loss, and the last.
std::vector<TrainingRow> thinned(const std::vector<TrainingRow>& rows, size_t most);

nlohmann::json training_json(const TrainingSection& section);
TrainingSection read_training(const JsonFields& fields);

Table training_table(const TrainingSection& section, Medium medium);

// One row for each of several trainings, under its name.
Table trainings_table(const std::vector<std::string>& names, const std::vector<TrainingSection>& sections, Medium medium);

Facts facts_of(const TrainingSection& section);

}  // namespace firkin
