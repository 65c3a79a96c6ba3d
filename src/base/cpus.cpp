#include "firkin/base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>

#include "base/control_group.h"

namespace firkin {
namespace {

// cpu.max: "150000 100000", microseconds per period, or "max 100000".
std::optional<double> quota_of(const ControlGroupFolder& group) {
  double quota = 0;
  double period = 0;
  if (group.version == 2) {
    std::ifstream(group.path / "cpu.max") >> quota >> period;
  } else {  // a quota of -1 is none
    quota = static_cast<double>(number_in_file(group.path / "cpu.cfs_quota_us").value_or(-1));
    period = static_cast<double>(number_in_file(group.path / "cpu.cfs_period_us").value_or(0));
  }
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

int positive_number(const char* text) {
  if (text == nullptr) return 0;
  std::string_view digits(text);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const std::string_view rest(end, static_cast<size_t>(digits.data() + digits.size() - end));
  const bool is_number = error == std::errc() && (rest.empty() || rest[0] == ',' || rest[0] == ' ');
  return is_number ? number : 0;
}

}  // namespace

int allowed_cpus() {
  constexpr int kMostCpus = 1 << 20;
  for (int cpus = CPU_SETSIZE; cpus <= kMostCpus; cpus *= 2) {  // the kernel refuses a mask that is smaller than its own
    cpu_set_t* mask = CPU_ALLOC(cpus);
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, bytes, mask) == 0;
    const bool too_small = !known && errno == EINVAL;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known) return std::max(1, count);
    if (!too_small) break;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::optional<double> cpu_quota(const std::filesystem::path& root) {
  std::optional<double> least;
  for (const ControlGroupFolder& group : control_group_folders("cpu", root)) {
    const auto quota = quota_of(group);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

int usable_cpus() {
  const double quota = cpu_quota().value_or(std::numeric_limits<int>::max());
  return std::max(1, static_cast<int>(std::min<double>(allowed_cpus(), quota)));
}

int threads_per_rank(int local_world_size) {
  return threads_per_rank(local_world_size, std::getenv("OMP_NUM_THREADS"), usable_cpus());
}

int threads_per_rank(int local_world_size, const char* omp_num_threads, int cpus) {
  if (const int wanted = positive_number(omp_num_threads); wanted > 0) return wanted;
  return std::max(1, cpus / std::max(1, local_world_size));
}

}  // namespace firkin
