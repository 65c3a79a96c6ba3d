// metrics.jsonl and metrics.csv: one line for every step, as training goes on. The first is read back, the second is for spreadsheets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "results/training.h"

namespace firkin {

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kMetricsTable = "metrics.csv";

class MetricsLog {
 public:
  // Goes on in these files of `folder`: the lines of steps below `next_step` stay, what is behind them goes (steps that are taken again, a
  // line that a killed run did not finish). Makes the files when there are none. Throws RuntimeError when they cannot be written.
  MetricsLog(const std::filesystem::path& folder, int64_t next_step);

  // Those that stayed.
  const std::vector<TrainingRow>& earlier() const { return earlier_; }

  // Why a line was not written, the first time; training goes on without.
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

}  // namespace firkin
