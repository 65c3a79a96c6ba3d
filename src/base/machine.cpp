#include "firkin/base/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string_view>

#include "firkin/base/units.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;

// A control group (Linux; containers, job schedulers): where its limits can be read.
struct ControlGroupFolder {
  int version = 2;  // the interface's version, on which the names of its files depend
  fs::path path;
};

// The folders of the control groups that limit this process's `controller` ("cpu", "memory"), innermost first, under
// /sys/fs/cgroup. Some may be missing: a container sees no more than its own group. root: where proc/ and sys/ lie. A
// line of proc/self/cgroup is "0::GROUP" (version 2) or "NUMBER:CONTROLLERS:GROUP" (version 1; cgroups(7)).
std::vector<ControlGroupFolder> control_group_folders(const std::string& controller, const fs::path& root) {
  std::vector<ControlGroupFolder> folders;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool lists_it = ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    if (!controllers.empty() && !lists_it) continue;
    const int version = controllers.empty() ? 2 : 1;
    const fs::path mounted = root / "sys/fs/cgroup" / (version == 1 ? controller : "");
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) folders.push_back({version, mounted / group});
    folders.push_back({version, mounted});
  }
  return folders;
}

// The number or word at the beginning of a file; none if it is missing or begins with something else ("max").
template <typename Value>
std::optional<Value> first_in_file(const fs::path& path) {
  std::ifstream in(path);
  Value value{};
  if (in >> value) return value;
  return std::nullopt;
}

// The number in the line "KEY NUMBER" of a file; none if there is no such file or line.
std::optional<int64_t> number_after(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string word; in >> word; in.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    int64_t number = 0;
    if (word == key && in >> number) return number;
    in.clear();
  }
  return std::nullopt;
}

// The CPU time that the group grants, in CPUs; none without a limit. cpu.max holds "150000 100000", microseconds per
// period, or "max 100000".
std::optional<double> quota_of(const ControlGroupFolder& group) {
  double quota = 0, period = 0;
  if (group.version == 2) {
    std::ifstream(group.path / "cpu.max") >> quota >> period;
  } else {  // no quota is written as -1
    quota = static_cast<double>(first_in_file<int64_t>(group.path / "cpu.cfs_quota_us").value_or(-1));
    period = static_cast<double>(first_in_file<int64_t>(group.path / "cpu.cfs_period_us").value_or(0));
  }
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// The text after the colon in the first line that begins with `key` ("model name : Intel(R) ..."); empty without one.
std::string value_of(const std::string& key, const fs::path& file) {
  constexpr const char* kBlanks = " \t";
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t first = line.find_first_not_of(kBlanks, colon + 1);
    return first == std::string::npos ? "" : line.substr(first, line.find_last_not_of(kBlanks) - first + 1);
  }
  return "";
}

// The first word of digits and points in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 21 ...".
std::string version_in(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return "";
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "";
}

// Bytes that the group may still use: its limit less its usage, not counting reclaimable page cache; none if unknown.
std::optional<int64_t> free_bytes_of(const ControlGroupFolder& group) {
  const bool v2 = group.version == 2;
  const auto limit = first_in_file<int64_t>(group.path / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = first_in_file<int64_t>(group.path / (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const int64_t can_drop = number_after(group.path / "memory.stat", v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - can_drop));
}

}  // namespace

std::vector<int64_t> allowed_cpus() {
  constexpr size_t kMostMasks = 1024;
  std::vector<int64_t> cpus;
  for (std::vector<cpu_set_t> mask(1); mask.size() <= kMostMasks; mask.resize(2 * mask.size())) {
    const size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      for (size_t cpu = 0; cpu < 8 * bytes; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask.data())) cpus.push_back(static_cast<int64_t>(cpu));
      }
      break;
    }
    if (errno != EINVAL) break;  // this is what the kernel says of a mask smaller than its own
  }
  return cpus;
}

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  for (const ControlGroupFolder& group : control_group_folders("cpu", root)) {
    const auto quota = quota_of(group);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

int usable_cpus() {
  const double quota = cpu_quota().value_or(std::numeric_limits<int>::max());
  return std::max(1, static_cast<int>(std::min(static_cast<double>(allowed_cpus().size()), quota)));
}

int threads_per_rank(int local_world_size) {
  return threads_per_rank(local_world_size, std::getenv("OMP_NUM_THREADS"), usable_cpus());
}

int threads_per_rank(int local_world_size, const char* omp_num_threads, int cpus) {
  std::string_view list = omp_num_threads == nullptr ? "" : omp_num_threads;
  list.remove_prefix(std::min(list.find_first_not_of(' '), list.size()));
  const int wanted = parse_number<int>(list.substr(0, list.find_first_of(", "))).value_or(0);
  return wanted > 0 ? wanted : std::max(1, cpus / std::max(1, local_world_size));
}

std::string gpus_in_words(const fs::path& root) {
  const fs::path driver = root / "proc/driver/nvidia";
  std::error_code ignored;
  std::map<std::string, int> counts;  // by model
  for (const auto& entry : fs::directory_iterator(driver / "gpus", ignored)) {
    if (const std::string model = value_of("Model:", entry.path() / "information"); !model.empty()) ++counts[model];
  }
  std::string text;
  for (const auto& [model, count] : counts) {
    text += (text.empty() ? "" : ", ") + (count > 1 ? std::to_string(count) + " x " : "") + model;
  }
  const std::string version = version_in(driver / "version");
  if (!text.empty() && !version.empty()) text += ", driver " + version;
  return text;
}

Host this_host(const fs::path& root) {
  utsname name{};
  uname(&name);
  return {.host = name.nodename,
          .cpu = value_of("model name", root / "proc/cpuinfo"),
          .os = std::string(name.sysname) + " " + name.release + " " + name.machine,
          .cores = sysconf(_SC_NPROCESSORS_ONLN),
          .usable_cores = std::ssize(allowed_cpus()),
          .cpu_quota = cpu_quota(root),
          .governor = first_in_file<std::string>(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
          .load = first_in_file<double>(root / "proc/loadavg")};
}

int64_t available_memory_bytes(const fs::path& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  if (const auto kibibytes = number_after(root / "proc/meminfo", "MemAvailable:")) least = *kibibytes * kKiB;
  for (const ControlGroupFolder& group : control_group_folders("memory", root))
    least = std::min(least, free_bytes_of(group).value_or(least));
  return least;
}

}  // namespace firkin
