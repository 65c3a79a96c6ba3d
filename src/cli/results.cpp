#include "results.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <thread>

#include <torch/headeronly/version.h>

namespace firkin::cli {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string operating_system() {
  utsname name{};
  uname(&name);
  return std::string(name.sysname) + " " + name.release + " " + name.machine;
}

}  // namespace

nlohmann::json results_head(const std::string& command, uint64_t seed) {
  nlohmann::json words = command_line();
  words.insert(words.begin(), "firkin");
  return {{"schema", "firkin.results/1"}, {"command", command}, {"command_line", words}, {"started", utc_now()}, {"seed", seed}};
}

nlohmann::json environment(int world_size, const std::string& backend) {
  return {{"firkin", FIRKIN_VERSION}, {"libtorch", TORCH_VERSION}, {"backend", backend},
          {"device", "cpu"},          {"cpu", processor_name()},   {"cores", std::thread::hardware_concurrency()},
          {"os", operating_system()}, {"world_size", world_size},  {"threads_per_rank", at::get_num_threads()}};
}

nlohmann::json interval_json(const Interval& interval) {
  return {{"low", interval.low}, {"high", interval.high}};
}

}  // namespace firkin::cli
