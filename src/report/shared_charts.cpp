#include "report/shared_charts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "chart_parts.h"
#include "firkin/base/output_folder.h"

namespace firkin {
namespace {

struct NamedTraining {
  std::string name;
  const TrainingSection* training;
};

// Each row of each training, thinned to what a screen can show.
template <typename AddRow>
void for_each_row(const std::vector<NamedTraining>& trainings, AddRow add_row) {
  constexpr size_t kMost = 500;  // steps of each
  for (const NamedTraining& one : trainings) {
    for (const TrainingRow& row : thinned(one.training->rows, kMost)) add_row(one.name, row);
  }
}

Chart chart_of_losses(const std::vector<NamedTraining>& trainings) {
  nlohmann::json losses = nlohmann::json::array();
  nlohmann::json held = nlohmann::json::array();
  for_each_row(trainings, [&](const std::string& name, const TrainingRow& row) {
    const auto point = [&](double loss, const char* of) {
      return nlohmann::json{{"step", row.step}, {"loss", loss}, {"of", of}, {"run", name}};
    };
    if (row.loss) losses.push_back(point(*row.loss, "training"));
    if (row.held_loss) held.push_back(point(*row.held_loss, "held part"));
  });
  std::vector<std::string> ends;
  for (const NamedTraining& one : trainings) {
    if (one.training->last_loss) ends.push_back(fmt::format("{} at {:.4f}", one.name, *one.training->last_loss));
  }
  Chart chart;
  chart.id = "losses";
  chart.title = "Losses";
  chart.caption =
      "Mean cross-entropy in nats per token. Lines: of each step's samples; points: of the part of the data that is not trained on.";
  chart.summary = fmt::format("Losses of {} trainings, which end: {}.", trainings.size(), fmt::join(ends, ", "));
  chart.spec = filled_chart("losses", {{"losses", losses}, {"held", held}});
  return chart;
}

Chart chart_of_speeds(const std::vector<NamedTraining>& trainings) {
  nlohmann::json speeds = nlohmann::json::array();
  for_each_row(trainings, [&](const std::string& name, const TrainingRow& row) {
    if (row.tokens_per_s) speeds.push_back({{"step", row.step}, {"speed", *row.tokens_per_s}, {"run", name}});
  });
  std::vector<std::string> means;
  for (const NamedTraining& one : trainings) {
    if (one.training->tokens_per_s) means.push_back(fmt::format("{} {:.0f}", one.name, *one.training->tokens_per_s));
  }
  Chart chart;
  chart.id = "speeds";
  chart.title = "Tokens per second";
  chart.caption = "Of all ranks together, step by step.";
  chart.summary = fmt::format("Tokens per second of {} trainings: {}.", trainings.size(), fmt::join(means, ", "));
  chart.spec = filled_chart("speeds", {{"speeds", speeds}});
  return chart;
}

// The last `count` parts of a path.
std::string tail_of(const std::filesystem::path& path, size_t count) {
  const std::vector<std::filesystem::path> parts(path.begin(), path.end());
  std::filesystem::path tail;
  for (size_t i = parts.size() - std::min(count, parts.size()); i < parts.size(); ++i) tail /= parts[i];
  return tail.string();
}

}  // namespace

std::vector<std::string> names_by_place(const std::vector<std::filesystem::path>& files) {
  std::vector<std::filesystem::path> places;
  size_t longest = 1;
  for (const std::filesystem::path& file : files) {
    const std::filesystem::path whole = std::filesystem::absolute(file).lexically_normal();
    places.push_back(whole.filename() == kResultsFile ? whole.parent_path() : whole);
    longest = std::max<size_t>(longest, static_cast<size_t>(std::distance(places.back().begin(), places.back().end())));
  }
  std::vector<std::string> names;
  for (size_t count = 1; count <= longest; ++count) {
    names.clear();
    for (const std::filesystem::path& place : places) names.push_back(tail_of(place, count));
    if (std::set<std::string>(names.begin(), names.end()).size() == std::set(places.begin(), places.end()).size()) break;
  }
  std::set<std::string> taken;
  for (std::string& name : names) {
    const std::string first = name;
    for (int number = 2; !taken.insert(name).second; ++number) name = fmt::format("{} ({})", first, number);
  }
  return names;
}

std::vector<Chart> shared_charts(const std::vector<Results>& several, const std::vector<std::string>& names) {
  std::vector<NamedTraining> trainings;
  for (size_t i = 0; i < several.size(); ++i) {
    if (several[i].training) trainings.push_back({names[i], &*several[i].training});
  }
  if (trainings.size() < 2) return {};
  std::vector<Chart> charts;
  for (Chart& chart : std::vector{chart_of_losses(trainings), chart_of_speeds(trainings)}) {
    if (!chart.spec["datasets"][chart.id].empty()) charts.push_back(std::move(chart));
  }
  return charts;
}

}  // namespace firkin
