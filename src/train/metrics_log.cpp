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

template <typename LineOf>
std::string lines_of_rows(const std::vector<TrainingRow>& rows, LineOf line_of) {
  std::string text;
  for (const TrainingRow& row : rows) text += line_of(row);
  return text;
}

std::string metrics_json_line(const TrainingRow& row) {
  return metrics_line(row) + "\n";
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
      table_(folder / kMetricsTable, metrics_csv_names() + lines_of_rows(earlier_, metrics_csv_line)) {}

std::optional<std::string> MetricsLog::append(const TrainingRow& row) {
  const std::string of_lines = lines_.append(metrics_json_line(row));
  const std::string of_table = table_.append(metrics_csv_line(row));
  const std::string& problem = of_lines.empty() ? of_table : of_lines;
  if (problem.empty() || complained_) return std::nullopt;
  complained_ = true;
  return fmt::format("metrics are missing from step {} on, training goes on; {}", row.step, problem);
}

}  // namespace firkin
