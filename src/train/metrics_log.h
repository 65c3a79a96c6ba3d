// metrics.jsonl: one line of JSON for every step, as training goes on.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "results/training.h"

namespace firkin {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

class MetricsLog {
 public:
  // Goes on in `file`: the lines of steps below `next_step` stay, what is behind them goes (steps that are taken again, a line that a
  // killed run did not finish). Makes the file when there is none. Throws RuntimeError when it cannot be written.
  MetricsLog(const std::filesystem::path& file, int64_t next_step);

  // Those that stayed.
  const std::vector<TrainingRow>& earlier() const { return earlier_; }

  // Why the line was not written, the first time; training goes on without.
  std::optional<std::string> append(const TrainingRow& row);

 private:
  std::filesystem::path path_;
  std::vector<TrainingRow> earlier_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool complained_ = false;
};

}  // namespace firkin
