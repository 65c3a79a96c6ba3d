#include "results/training.h"

#include <algorithm>

#include "firkin/base/json_text.h"
#include "results/steps.h"

namespace firkin {
namespace {

constexpr const char* kRows = "rows";

constexpr Field<TrainingRow> kRowFields[] = {{"step", &TrainingRow::step, Unit::kPlain, "step"},
                                             {"loss", &TrainingRow::loss, Unit::kPlain, "loss"},
                                             {kHeldLossKey, &TrainingRow::held_loss, Unit::kPlain, "held loss"},
                                             {"learning_rate", &TrainingRow::learning_rate, Unit::kPlain, "learning rate"},
                                             {"gradient_norm", &TrainingRow::gradient_norm, Unit::kPlain, "gradient norm"},
                                             {kTokensPerSecondKey, &TrainingRow::tokens_per_s, Unit::kPlain, "tokens/s"},
                                             {kStepSecondsKey, &TrainingRow::step_s, Unit::kDifference, "step"},
                                             {kExposedKey, &TrainingRow::exposed_s, Unit::kDifference, "exposed"},
                                             {"data_s", &TrainingRow::data_s, Unit::kDifference, "data", kCsv},
                                             {"checkpoint_s", &TrainingRow::checkpoint_s, Unit::kDifference, "checkpoint", kCsv},
                                             {"skipped", &TrainingRow::skipped, Unit::kText, "skipped", kPage | kCsv}};

constexpr Field<TrainingSection> kSectionFields[] = {
    {"steps", &TrainingSection::steps, Unit::kPlain, "steps"},
    {"planned_steps", &TrainingSection::planned_steps, Unit::kPlain, "of"},
    {"tokens_per_step", &TrainingSection::tokens_per_step, Unit::kCount, "tokens a step"},
    {"last_loss", &TrainingSection::last_loss, Unit::kPlain, "last loss"},
    {"last_held_loss", &TrainingSection::last_held_loss, Unit::kPlain, "last held loss"},
    {"best_held_loss", &TrainingSection::best_held_loss, Unit::kPlain, "best held loss"},
    {kTokensPerSecondKey, &TrainingSection::tokens_per_s, Unit::kPlain, "tokens/s"},
    {"exposed_share", &TrainingSection::exposed_share, Unit::kShare, "exposed communication"},
    {"data_share", &TrainingSection::data_share, Unit::kShare, "reading samples"},
    {"checkpoint_share", &TrainingSection::checkpoint_share, Unit::kShare, "checkpoints"}};

}  // namespace

std::string metrics_line(const TrainingRow& row) {
  return dump_json(to_json<TrainingRow>(kRowFields, row));
}

std::string metrics_csv_names() {
  return csv_lines(csv_names<TrainingRow>(kRowFields), {});
}

std::string metrics_csv_line(const TrainingRow& row) {
  return csv_lines(csv_line<TrainingRow>(kRowFields, row), {});
}

TrainingRow read_training_row(const JsonFields& fields) {
  return from_json<TrainingRow>(kRowFields, fields);
}

std::vector<TrainingRow> thinned(const std::vector<TrainingRow>& rows, size_t most) {
  const size_t stride = std::max<size_t>(1, (rows.size() + most - 1) / std::max<size_t>(1, most));
  std::vector<TrainingRow> kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % stride == 0 || rows[i].held_loss || i + 1 == rows.size()) kept.push_back(rows[i]);
  }
  return kept;
}

nlohmann::json training_json(const TrainingSection& section) {
  nlohmann::json json = to_json<TrainingSection>(kSectionFields, section);
  json[kRows] = rows_to_json<TrainingRow>(kRowFields, section.rows);
  return json;
}

TrainingSection read_training(const JsonFields& fields) {
  TrainingSection section = from_json<TrainingSection>(kSectionFields, fields);
  section.rows = rows_from_json<TrainingRow>(kRowFields, fields.objects(kRows));
  return section;
}

Table training_table(const TrainingSection& section, Medium medium) {
  constexpr size_t kRowsOfATable = 20;
  return table_of<TrainingRow>(kRowFields, thinned(section.rows, kRowsOfATable), medium, "Steps of the training");
}

Table trainings_table(const std::vector<std::string>& names, const std::vector<TrainingSection>& sections, Medium medium) {
  Table table = table_of<TrainingSection>(kSectionFields, sections, medium, "Trainings side by side");
  table.columns.insert(table.columns.begin(), {"run", false});
  for (size_t i = 0; i < sections.size(); ++i) table.rows[i].cells.insert(table.rows[i].cells.begin(), names[i]);
  return table;
}

Facts facts_of(const TrainingSection& section) {
  return facts_of<TrainingSection>(kSectionFields, section);
}

}  // namespace firkin
