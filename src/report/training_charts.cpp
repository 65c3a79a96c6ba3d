// The loss of a training over its steps, and where the time of a step went.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {

std::optional<Chart> loss_chart(const Results& results) {
  if (!results.training) return std::nullopt;
  nlohmann::json losses = nlohmann::json::array();
  nlohmann::json held = nlohmann::json::array();
  for (const TrainingRow& row : results.training->rows) {
    const auto point = [&row](double loss, const char* of) {
      return nlohmann::json{{"step", row.step}, {"loss", loss}, {"rate", fmt::format("{:.3g}", row.learning_rate)}, {"of", of}};
    };
    if (row.loss) losses.push_back(point(*row.loss, "training"));
    if (row.held_loss) held.push_back(point(*row.held_loss, "held part"));
  }
  if (losses.empty()) return std::nullopt;
  Chart chart;
  chart.id = "loss";
  chart.title = "Loss";
  chart.caption =
      "Mean cross-entropy in nats per token: of each step's samples before the update, and of the part of the data that is never trained "
      "on.";
  chart.summary = fmt::format("Loss over {} steps, from {:.4f} to {:.4f}.", results.training->steps, losses.front()["loss"].get<double>(),
                              losses.back()["loss"].get<double>());
  chart.spec = filled_chart("loss", {{"loss", losses}, {"held", held}});
  return chart;
}

std::optional<Chart> pace_chart(const Results& results) {
  if (!results.training || results.training->rows.size() < 2) return std::nullopt;
  constexpr size_t kMost = 200;  // steps; more are finer than the screen
  nlohmann::json rows = nlohmann::json::array();
  for (const TrainingRow& row : thinned(results.training->rows, kMost)) {
    const std::string speed = row.tokens_per_s ? fmt::format("{:.0f} tokens/s", *row.tokens_per_s) : "–";
    for (const auto& [part, time_s] : {std::pair{"computation", row.step_s - row.exposed_s}, {"exposed communication", row.exposed_s}}) {
      rows.push_back({{"step", row.step}, {"time_s", std::max(0.0, time_s)}, {"part", part}, {"speed", speed}});
    }
  }
  Chart chart;
  chart.id = "pace";
  chart.title = "Time of a step";
  chart.caption = "Of rank 0. Exposed communication: waiting for gradients, which computation did not hide.";
  chart.summary = fmt::format("Time of {} steps.", results.training->steps);
  if (results.training->exposed_share) {
    chart.summary += fmt::format(" {} of it is exposed communication.", display_percent(*results.training->exposed_share));
  }
  chart.spec = filled_chart("pace", {{"pace", rows}});
  return chart;
}

}  // namespace firkin
