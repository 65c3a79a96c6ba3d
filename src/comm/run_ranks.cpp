#include "firkin/comm/run_ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "backends.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/machine.h"
#include "firkin/comm/rank_info.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace firkin {

namespace {

std::optional<int> parse_number(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

struct RankArguments {
  std::optional<int> ranks;         // from --ranks
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

constexpr int kBadInput = 2;  // exit code

// Printed when this rank ends with exit code 2; empty: it has said why. launch_local_ranks() prints nothing for this
// code, because it is that of an InputError, which the rank reports.
std::string said_at_exit;

void say_at_exit(int exit_code, void* /*unused*/) {
  if (exit_code == kBadInput && !said_at_exit.empty()) fmt::print(stderr, "{}\n", said_at_exit);
}

int run(const RankArguments& arguments, const RankBody& body, const GroupOptions& options, const std::string& program) {
  const std::optional<RankInfo> info = rank_info_unless_alone();
  if (!info && arguments.ranks) return launch_local_ranks(*arguments.ranks, arguments.others);
  if (!info) return body(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, options), arguments.others);
  if (arguments.ranks && *arguments.ranks != info->world_size) {
    throw InputError(fmt::format("--ranks {}: a launcher started {} ranks; leave --ranks out", *arguments.ranks, info->world_size));
  }
  set_torch_log_level();
  at::set_num_threads(threads_per_rank(info->local_world_size));  // LibTorch would take every core in each process
  const ProcessGroup group = connect(*info, options);
  said_at_exit = fmt::format("{}: rank {} ended with exit code {}", program, info->rank, kBadInput);
  on_exit(say_at_exit, nullptr);  // the body may call exit()
  const auto forget = c10::make_scope_exit([] { said_at_exit.clear(); });
  const int exit_code = body(group, arguments.others);
  say_at_exit(exit_code, nullptr);
  return exit_code;
}

}  // namespace

int run_ranks(int argc, const char* const* argv, const RankBody& body, const GroupOptions& options) {
  occupy_standard_descriptors();
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  try {
    return run(parse_arguments(argc, argv), body, options, program);
  } catch (const InputError& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return kBadInput;
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
