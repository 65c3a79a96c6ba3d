#include "train/run_id.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace firkin {
namespace {

constexpr std::string_view kNoName = "none";  // torchrun's own default

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

}  // namespace firkin
