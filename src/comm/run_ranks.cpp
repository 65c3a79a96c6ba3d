#include "firkin/comm/run_ranks.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <c10/util/ScopeExit.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "backends.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/machine.h"
#include "firkin/base/units.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBadInput = 2;                      // exit code of a rank that has said in one line what is wrong with its input
constexpr int kReaderHasGone = 128 + SIGPIPE;     // exit code of a rank whose output was read by `head`, say: no error
constexpr auto kGrace = std::chrono::seconds(3);  // between SIGTERM and SIGKILL

[[noreturn]] void fail(const char* what) {
  throw RuntimeError(fmt::format("--ranks: {}: {}", what, std::strerror(errno)));
}

// A store on a port of 127.0.0.1 that the system chose.
c10::intrusive_ptr<c10d::TCPStore> host_store() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, SOMAXCONN) != 0) {
    fail("cannot listen on loopback");
  }
  // Where loopback is down, LibTorch 2.13 would try to connect until its timeout.
  const int trial = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto end_of_trial = c10::make_scope_exit([trial] { close(trial); });
  address.sin_port = htons(1);
  if (trial < 0 || connect(trial, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("cannot connect to loopback");
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// The environment of one rank: ours, with torchrun's variables.
std::vector<std::string> rank_environment(int rank, int ranks, int port) {
  const std::map<std::string, std::string> ours = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},  // the store is ours: rank 0 must not listen
  };
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!ours.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : ours) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  int output = -1;      // read end of the pipe with its standard output and error; -1 for rank 0
  std::string pending;  // an output line that is not complete yet
  bool running = true;
};

RankProcess start_rank(int rank, int ranks, int port, std::span<const std::string> arguments) {
  std::vector<std::string> argv_texts{program_invocation_name};
  argv_texts.insert(argv_texts.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment_texts = rank_environment(rank, ranks, port);
  std::vector<char*> argv = pointers(argv_texts);
  std::vector<char*> environment = pointers(environment_texts);

  int ends[2] = {-1, -1};
  if (rank != 0 && pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail("cannot start a process");
  if (pid == 0) {  // only async-signal-safe calls from here: the parent has threads
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (rank != 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
    }
    execve("/proc/self/exe", argv.data(), environment.data());
    _exit(127);
  }
  if (rank != 0) {
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  return {rank, pid, ends[0], "", true};
}

void print_tagged(int rank, std::string_view line) {
  fmt::print(stderr, "[rank {}] {}\n", rank, line);
}

void close_output(RankProcess& process) {
  if (!process.pending.empty()) print_tagged(process.rank, process.pending);
  close(process.output);
  process.output = -1;
}

// Prints the complete lines that have arrived; closes the pipe at its end. Returns whether anything had arrived.
bool forward_output(RankProcess& process) {
  char buffer[4096];
  const ssize_t size = read(process.output, buffer, sizeof buffer);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && errno == EAGAIN) return false;
  if (size <= 0) {
    close_output(process);
    return false;
  }
  process.pending.append(buffer, static_cast<size_t>(size));
  size_t start = 0;
  for (size_t end; (end = process.pending.find('\n', start)) != std::string::npos; start = end + 1) {
    print_tagged(process.rank, std::string_view(process.pending).substr(start, end - start));
  }
  process.pending.erase(0, start);
  return true;
}

void signal_all(const std::vector<RankProcess>& processes, int signal) {
  for (const RankProcess& process : processes) {
    if (process.running) kill(process.pid, signal);
  }
}

// Records the signals that ask this launch to end. These, and the end of a rank, interrupt poll(). A signalfd would not
// do: signals are blocked per thread, and LibTorch has threads of its own. There may be one object at a time; its
// destructor restores the handlers that were there before.
class LaunchSignals {
 public:
  LaunchSignals() {
    struct sigaction action {};
    action.sa_handler = [](int signal) {
      if (signal != SIGCHLD) request_ = signal;
    };
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous_[i]);
  }
  ~LaunchSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
  }
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  // The last signal since the call before, or 0.
  static int take_request() { return request_.exchange(0); }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  static inline std::atomic<int> request_ = 0;
  std::array<struct sigaction, kSignals.size()> previous_{};
};

struct LocalLaunch {
  std::vector<RankProcess> processes;
  int exit_code = 0;
  bool ending = false;
  Clock::time_point kill_at = Clock::time_point::max();

  bool any_running() const { return std::ranges::any_of(processes, &RankProcess::running); }

  void end_others(int code) {
    if (ending) return;
    ending = true;
    exit_code = code;
    kill_at = Clock::now() + kGrace;
    signal_all(processes, SIGTERM);
  }

  // Collects the ranks that have ended; the first that failed ends the others.
  void reap() {
    for (RankProcess& process : processes) {
      int status = 0;
      if (!process.running || waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
      process.running = false;
      const bool succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (succeeded || ending) continue;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      if (code != kBadInput && code != kReaderHasGone) {
        const std::string end = WIFSIGNALED(status)
                                    ? fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                    : fmt::format("failed with exit code {}", code);
        fmt::print(stderr, "firkin: rank {} {}{}\n", process.rank, end, any_running() ? "; ending the other ranks" : "");
      }
      end_others(code);
    }
  }

  // Forwards the ranks' output that has arrived, after waiting for some, for a signal, or for 100 ms.
  void wait_for_events() {
    std::vector<pollfd> descriptors;
    std::vector<RankProcess*> readers;
    for (RankProcess& process : processes) {
      if (process.output < 0) continue;
      descriptors.push_back({process.output, POLLIN, 0});
      readers.push_back(&process);
    }
    constexpr int kPollMs = 100;  // a signal just before poll() does not interrupt it
    if (poll(descriptors.data(), descriptors.size(), kPollMs) < 0 && errno != EINTR) fail("cannot wait");
    for (size_t i = 0; i < readers.size(); ++i) {
      if (descriptors[i].revents != 0) forward_output(*readers[i]);
    }
  }
};

struct RankArguments {
  std::optional<int> ranks;         // from --ranks
  std::vector<std::string> others;  // in their order
};

int parse_ranks(const std::string& text) {
  const auto ranks = parse_number<int>(text);
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

// Printed if this rank ends with exit code 2; empty if it has printed an InputError. launch_local_ranks() prints
// nothing for this code, which is that of an InputError.
std::string message_at_exit;

void print_at_exit(int exit_code, void* /*unused*/) {
  if (exit_code == kBadInput && !message_at_exit.empty()) fmt::print(stderr, "{}\n", message_at_exit);
}

int run(const RankArguments& arguments, const RankBody& body, const GroupOptions& options, const std::string& program) {
  const std::optional<RankInfo> info = rank_info_unless_alone();
  if (!info && arguments.ranks) return launch_local_ranks(*arguments.ranks, arguments.others);
  if (!info) return body(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, options), arguments.others);
  const int threads = threads_per_rank(info->local_world_size);  // LibTorch would take every core in each process
  const ProcessGroup group = begin_rank(*info, arguments.ranks, threads, options);
  message_at_exit = fmt::format("{}: rank {} ended with exit code {}", program, info->rank, kBadInput);
  on_exit(print_at_exit, nullptr);  // the body may call exit()
  const auto forget = c10::make_scope_exit([] { message_at_exit.clear(); });
  const int exit_code = body(group, arguments.others);
  print_at_exit(exit_code, nullptr);
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

int launch_local_ranks(int ranks, std::span<const std::string> arguments) {
  const auto store = host_store();
  const LaunchSignals signals;
  LocalLaunch launch;
  for (int rank = 0; rank < ranks; ++rank) launch.processes.push_back(start_rank(rank, ranks, store->getPort(), arguments));
  while (launch.any_running()) {
    launch.wait_for_events();
    if (const int signal = LaunchSignals::take_request(); signal != 0) {
      fmt::print(stderr, "\nfirkin: {}; ending the ranks\n", strsignal(signal));
      constexpr int kSignalExitBase = 128;  // the shell's convention
      launch.end_others(kSignalExitBase + signal);
    }
    launch.reap();
    if (Clock::now() >= launch.kill_at) {
      signal_all(launch.processes, SIGKILL);
      launch.kill_at = Clock::time_point::max();
    }
  }
  // Prints what the ranks have written, but does not wait until the pipes end: a process that a rank left behind may
  // hold them open for long.
  for (RankProcess& process : launch.processes) {
    while (process.output >= 0 && forward_output(process)) continue;
    if (process.output >= 0) close_output(process);
  }
  return launch.exit_code;
}

ProcessGroup begin_rank(const RankInfo& info, std::optional<int> asked, int threads, const GroupOptions& options) {
  if (asked && *asked != info.world_size) {
    throw InputError(fmt::format("--ranks {}: a launcher started {} ranks; leave --ranks out", *asked, info.world_size));
  }
  constexpr int kErrors = 2;  // glog's number; the names of levels differ between builds of LibTorch
  const char* level = std::getenv("TORCH_CPP_LOG_LEVEL");
  if (level != nullptr && *level != '\0') {
    c10::initLogging();  // LibTorch itself reads the level only under Python
  } else {
    FLAGS_caffe2_log_level = kErrors;
  }
  at::set_num_threads(threads);
  return connect(info, options);
}

}  // namespace firkin
