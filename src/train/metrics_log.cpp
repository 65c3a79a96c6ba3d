#include "train/metrics_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <sstream>

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
      const nlohmann::json json = parse_json(line, file.string(), "a step of a training");
      TrainingRow row = read_training_row(JsonFields(json, ""));
      if (row.step < next_step) rows.push_back(std::move(row));
    } catch (const std::exception&) {
      break;  // not finished
    }
  }
  return rows;
}

std::string text_of_rows(const std::vector<TrainingRow>& rows) {
  std::string text;
  for (const TrainingRow& row : rows) text += metrics_line(row) + "\n";
  return text;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& file, int64_t next_step)
    : path_(file), earlier_(rows_below(file, next_step)), file_(nullptr, &std::fclose) {
  write_file_atomically(file, text_of_rows(earlier_));
  file_.reset(std::fopen(file.c_str(), "ae"));
  if (!file_) throw RuntimeError(fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
}

std::optional<std::string> MetricsLog::append(const TrainingRow& row) {
  const std::string line = metrics_line(row) + "\n";
  errno = 0;
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0;
  if (written || complained_) return std::nullopt;
  complained_ = true;
  return fmt::format("{}: lines are missing from step {} on, training goes on: {}", path_.string(), row.step, std::strerror(errno));
}

}  // namespace firkin
