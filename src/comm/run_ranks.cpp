#include "firkin/comm/run_ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "backends.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "firkin/comm/rank_info.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace firkin {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> parse_number(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

int number(const char* name) {
  const auto text = variable(name);
  if (!text) throw InputError(fmt::format("{} is not set, though other variables of the same launcher are", name));
  const auto value = parse_number(*text);
  if (!value || *value < 0) throw InputError(fmt::format("{}={}: expected a number, 0 or more", name, *text));
  return *value;
}

int number_or(const char* name, int fallback) {
  return variable(name) ? number(name) : fallback;
}

// With its meeting point.
RankInfo completed(RankInfo info) {
  info.master_address = variable("MASTER_ADDR").value_or(info.master_address);
  info.master_port = number_or("MASTER_PORT", info.master_port);
  if (info.world_size < 1 || info.rank >= info.world_size) {
    throw InputError(fmt::format("rank {} of world size {}: expected a rank below the world size", info.rank, info.world_size));
  }
  if (info.master_port < 1 || info.master_port > 65535) {
    throw InputError(fmt::format("MASTER_PORT={}: expected a port, 1 to 65535", info.master_port));
  }
  return info;
}

RankInfo from_torchrun() {
  RankInfo info;
  info.rank = number("RANK");
  info.world_size = number("WORLD_SIZE");
  info.local_rank = number_or("LOCAL_RANK", info.rank);
  info.local_world_size = number_or("LOCAL_WORLD_SIZE", info.world_size);
  return completed(info);
}

RankInfo from_open_mpi() {
  RankInfo info;
  info.rank = number("OMPI_COMM_WORLD_RANK");
  info.world_size = number("OMPI_COMM_WORLD_SIZE");
  info.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK");
  info.local_world_size = number("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (!variable("MASTER_ADDR") && info.local_world_size != info.world_size) {
    throw InputError("MASTER_ADDR is not set; mpirun over several machines needs it: mpirun -x MASTER_ADDR=HOST ...");
  }
  return completed(info);
}

RankInfo from_slurm() {
  RankInfo info;
  info.rank = number("SLURM_PROCID");
  info.world_size = number("SLURM_STEP_NUM_TASKS");
  info.local_rank = number("SLURM_LOCALID");
  info.local_world_size = info.world_size / std::max(1, number_or("SLURM_STEP_NUM_NODES", 1));
  if (const auto nodes = variable("SLURM_STEP_NODELIST")) info.master_address = first_slurm_host(*nodes);
  return completed(info);
}

struct RankArguments {
  std::optional<int> ranks;         // of --ranks
  std::vector<std::string> others;  // in their order
};

int parse_ranks(const std::string& text) {
  const auto ranks = parse_number(text);
  if (!ranks || *ranks < 1 || *ranks > kMostLocalRanks) {
    throw InputError(fmt::format("--ranks {}: expected 1 to {}", text, kMostLocalRanks));
  }
  return *ranks;
}

RankArguments parse_arguments(int argc, const char* const* argv) {
  constexpr std::string_view kFlag = "--ranks";
  RankArguments result;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == kFlag) {
      if (i + 1 == argc) throw InputError(fmt::format("--ranks: expected a number after it, 1 to {}", kMostLocalRanks));
      result.ranks = parse_ranks(argv[++i]);
    } else if (word.starts_with("--ranks=")) {
      result.ranks = parse_ranks(word.substr(kFlag.size() + 1));
    } else {
      result.others.push_back(word);
    }
  }
  return result;
}

int run(const RankArguments& arguments, const RankBody& body, const GroupOptions& options) {
  const std::optional<RankInfo> info = rank_info_from_environment();
  if (!info && arguments.ranks) return launch_local_ranks(*arguments.ranks, arguments.others);
  if (!info) return body(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, options), arguments.others);
  if (arguments.ranks && *arguments.ranks != info->world_size) {
    throw InputError(fmt::format("--ranks {}: a launcher started {} ranks; leave --ranks out", *arguments.ranks, info->world_size));
  }
  set_torch_log_level();
  at::set_num_threads(threads_per_rank(info->local_world_size));  // LibTorch would take every core in each process
  return body(connect(*info, options), arguments.others);
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  const size_t bracket = node_list.find_first_of("[,");
  std::string host = node_list.substr(0, bracket);
  if (bracket != std::string::npos && node_list[bracket] == '[') {
    host += node_list.substr(bracket + 1, node_list.find_first_of("-,]", bracket) - bracket - 1);
  }
  if (host.empty()) throw InputError(fmt::format("SLURM_STEP_NODELIST={}: expected a list of nodes", node_list));
  return host;
}

std::optional<RankInfo> rank_info_from_environment() {
  if (variable("RANK") || variable("WORLD_SIZE")) return from_torchrun();
  if (variable("OMPI_COMM_WORLD_RANK")) return from_open_mpi();
  // A batch script has SLURM_PROCID as well; only a step started by srun has its number of tasks.
  if (variable("SLURM_PROCID") && variable("SLURM_STEP_NUM_TASKS")) return from_slurm();
  return std::nullopt;
}

int run_ranks(int argc, const char* const* argv, const RankBody& body, const GroupOptions& options) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  try {
    return run(parse_arguments(argc, argv), body, options);
  } catch (const InputError& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return 2;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();  // LibTorch's errors bring a backtrace after the first line
    fmt::print(stderr, "{}: {}\n", program, text.substr(0, text.find('\n')));
    return 1;
  }
}

void set_torch_log_level() {
  constexpr int kErrors = 2;  // glog's number; the names of levels differ between builds of LibTorch
  const char* level = std::getenv("TORCH_CPP_LOG_LEVEL");
  if (level != nullptr && *level != '\0') {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = kErrors;
  }
}

}  // namespace firkin
