// One rank of a training that may lose a rank: the victim sends itself a signal when it reaches a phase. faults.py starts the ranks.
//
//   for rank in 0 1; do
//     RANK=$rank WORLD_SIZE=2 MASTER_PORT=29511 fault_ranks --victim 1 --phase backward --signal KILL </dev/null &
//   done
//
// A rank prints `ready` and waits for a line on standard input, so that all of them start at once whatever loading LibTorch takes.
// Exit code 0 when the training ended well; 1 and one line on standard error when it did not.
#include <ATen/record_function.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string_view>

#include "../torch.h"
#include "comm/group_state.h"
#include "firkin/comm/process_group.h"
#include "firkin/comm/rank_info.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

enum class Phase {
  kNone,
  kRendezvous,    // before connect(): the victim never meets the others
  kConstruction,  // connected, while the others are in the constructor's collectives
  kForward,
  kBackward,    // in the middle of backward: no gradient of the first layers is there yet
  kBucket,      // bucket 1 is in flight
  kAgreement,   // every bucket is in flight; what ends the step is not
  kOptimizer,   // the step is complete, the optimiser has not stepped
  kGather,      // under the strategy sharded: the optimiser has stepped, and parameters are on their way
  kDestructor,  // after the last step, before the DataParallel goes
  kMoment,      // wherever it is so long after the constructor; the training does not end by itself
};

const std::map<std::string, Phase> kPhases = {
    {"rendezvous", Phase::kRendezvous}, {"construction", Phase::kConstruction},
    {"forward", Phase::kForward},       {"backward", Phase::kBackward},
    {"bucket", Phase::kBucket},         {"agreement", Phase::kAgreement},
    {"optimizer", Phase::kOptimizer},   {"gather", Phase::kGather},
    {"destructor", Phase::kDestructor}, {"moment", Phase::kMoment},
};

constexpr int kSteps = 5;
constexpr int kFaultyStep = 2;  // from 0; the first step shows the ready order, from the second on the buckets stay as they are
constexpr int64_t kInFlightBucket = 1;

struct Flags {
  int victim = -1;  // nobody
  Phase phase = Phase::kNone;
  int lives = 1;
  int signal = SIGKILL;
  std::string strategy = "bucketed";
  std::optional<double> moment_s;
  double timeout_s = 3;
  bool has_children = false;
  std::optional<int> served_port;
  std::string device = "cpu";
  std::string backend = "auto";
  int64_t audit_every = 100;  // steps
};

// What the victim knows of its end. Nothing happens on the other ranks.
struct Fault {
  int rank = 0;
  int signal = SIGKILL;
  Phase phase = Phase::kNone;  // kNone on the other ranks
  int step = 0;
  int64_t launched = 0;  // buckets of this step

  void begin_step(int now) {
    step = now;
    launched = 0;
  }

  void reach(Phase now) const {
    if (now != phase) return;
    for (const auto& [name, known] : kPhases) {
      if (known == now) fmt::print("reached {}\n", name);
    }
    std::fflush(stdout);
    std::raise(signal);
  }

  void reach_in_step(Phase now) const {
    if (step == kFaultyStep) reach(now);
  }

  void launch_bucket() {
    if (launched++ == kInFlightBucket + 1) reach_in_step(Phase::kBucket);
  }
};

// With buckets of at most kCapBytes: {head, norm_2, second.bias}, {second.weight}, {norm_1, first.bias}, {first.weight}.
constexpr int64_t kCapBytes = 8 * kKiB;
constexpr int64_t kInputs = 32;
constexpr int64_t kHidden = 64;
constexpr int64_t kOutputs = 8;
constexpr int64_t kBatch = 16;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const Fault& fault) {
    at::Tensor hidden = torch::relu(use(norm_1)->forward(use(first)->forward(x)));
    fault.reach_in_step(Phase::kForward);
    hidden.register_hook([&fault](const at::Tensor&) { fault.reach_in_step(Phase::kBackward); });
    return use(head)->forward(torch::relu(use(norm_2)->forward(use(second)->forward(hidden))));
  }

  template <typename Module>
  static Module& use(Module& module) {
    await_parameters(*module);
    return module;
  }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(kInputs, kHidden));
  torch::nn::BatchNorm1d norm_1 = register_module("norm_1", torch::nn::BatchNorm1d(kHidden));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(kHidden, kHidden));
  torch::nn::BatchNorm1d norm_2 = register_module("norm_2", torch::nn::BatchNorm1d(kHidden));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kHidden, kOutputs));
};

// Collectives are recorded as they are launched, for profilers: a step's buckets first, then its agreement.
void observe_collectives(Fault& fault) {
  static Fault* const kObserver = &fault;
  const auto launched = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    const std::string_view name = function.name();
    if (name.ends_with(":all_reduce")) kObserver->launch_bucket();
    if (name == kAgreementCollective) kObserver->reach_in_step(Phase::kAgreement);
    return nullptr;
  };
  at::addGlobalCallback(at::RecordFunctionCallback(launched).scopes({at::RecordScope::USER_SCOPE}));
}

void wait_for_go() {
  fmt::print("ready\n");
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
}

// On a thread of its own, which lives as long as the process.
void reach_after(double seconds, const Fault& fault) {
  std::thread([seconds, fault] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    fault.reach(Phase::kMoment);
  }).detach();
}

// Processes that outlive this one, as a data loader's workers and a helper program may: one goes on as a fork, one executes a program.
void leave_children() {
  constexpr unsigned kChildLifeS = 300;
  if (fork() == 0) {
    const int null = open("/dev/null", O_RDWR);
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, descriptor);  // the test reads to their ends
    sleep(kChildLifeS);
    _exit(0);
  }
  const std::string command = fmt::format("sleep {} </dev/null >/dev/null 2>&1 &", kChildLifeS);
  if (std::system(command.c_str()) != 0) throw RuntimeError("cannot start a child");
}

// The sum of their squares, which is the same on every rank.
void print_parameters(const Net& net) {
  for (const auto& module : net.modules(/*include_self=*/false)) await_parameters(*module);
  double squares = 0;
  for (const at::Tensor& parameter : net.parameters()) {
    squares += parameter.detach().to(at::kCPU, at::kDouble).square().sum().item<double>();
  }
  fmt::print("parameters {:.17g}\n", squares);
}

void train(Net& net, const ProcessGroup& group, const Flags& flags, Fault& fault) {
  DataParallelOptions options;
  options.strategy = find_strategy(flags.strategy);
  options.cap = {.cap_bytes = kCapBytes, .rule = CapRule::kAtMost};
  options.audit_every = flags.audit_every;
  observe_collectives(fault);
  DataParallel ddp(net, group, options);
  std::optional<ShardedOptimizer> sharded;
  if (options.strategy.shards) {
    sharded.emplace(ddp,
                    [](const std::vector<NamedTensor>& parts) { return std::make_unique<torch::optim::SGD>(tensors_of(parts), 0.01); });
  }
  torch::optim::SGD optimizer(net.parameters(), 0.01);
  std::optional<OverlappedOptimizer> overlapped;
  if (flags.strategy == "ordered") overlapped.emplace(ddp, optimizer);
  if (flags.moment_s) reach_after(*flags.moment_s, fault);
  for (int step = 0; step < kSteps || flags.moment_s; ++step) {
    fault.begin_step(step);
    optimizer.zero_grad();
    net.forward(torch::randn({kBatch, kInputs}).to(group.device), fault).pow(2).mean().backward();
    fault.reach_in_step(Phase::kOptimizer);
    sharded ? sharded->step() : overlapped ? overlapped->step() : void(optimizer.step());
    fault.reach_in_step(Phase::kGather);
    if (step >= kSteps) continue;  // nobody reads that much
    fmt::print("step {} of {}\n", step, kSteps);
    std::fflush(stdout);
  }
  fault.reach(Phase::kDestructor);
  if (flags.victim < 0) print_parameters(net);
}

// How often torchrun's agent of this node has started its ranks again.
int restarts() {
  const char* text = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return text == nullptr ? 0 : std::stoi(text);
}

void run_rank(const RankInfo& info, const Flags& flags) {
  const bool is_victim = info.rank == flags.victim && restarts() < flags.lives;
  Fault fault{.rank = info.rank, .signal = flags.signal, .phase = is_victim ? flags.phase : Phase::kNone};
  torch::manual_seed(1 + info.rank);  // on the CPU: batches are the same on every device
  Net net;
  wait_for_go();
  fault.reach(Phase::kRendezvous);
  const std::chrono::milliseconds timeout(static_cast<int64_t>(1e3 * flags.timeout_s));
  const c10::Device device(flags.device);
  const ProcessGroup group = connect(info, {.backend = flags.backend, .device = device, .timeout = timeout});
  if (flags.has_children) leave_children();
  net.to(group.device);
  barrier(group);  // so that nobody is in the rendezvous any more when the victim is in the next phase
  fault.reach(Phase::kConstruction);
  train(net, group, flags, fault);
  barrier(group);  // whoever lost a rank since the last step hears of it here
}

// A launcher's part: prints the port, and hosts the store until standard input ends.
void serve_store(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  fmt::print("{}\n", store->getPort());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
  }
}

int run(const Flags& flags) {
  if (flags.served_port) {
    serve_store(*flags.served_port);
    return 0;
  }
  std::string who = "no rank";
  try {
    const auto info = rank_info_from_environment();
    if (!info) throw InputError("no launcher's variables; expected RANK, WORLD_SIZE and MASTER_PORT");
    who = fmt::format("rank {}", info->rank);
    run_rank(*info, flags);
    return 0;
  } catch (const std::exception& error) {
    const std::string text = error.what();  // LibTorch's errors bring a backtrace after the first line
    fmt::print(stderr, "fault_ranks: {}: {}\n", who, text.substr(0, text.find('\n')));
    return 1;
  }
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped rank would outlive a test that was killed
  Flags flags;
  const std::map<std::string, int> signals{{"KILL", SIGKILL}, {"STOP", SIGSTOP}};
  CLI::App app("One rank of a training in which a rank is killed or stopped.");
  app.add_option("--victim", flags.victim, "the rank that gets the signal; -1 for none")->capture_default_str();
  app.add_option("--phase", flags.phase, "where it gets it; those of a step are in step 2")->transform(CLI::CheckedTransformer(kPhases));
  app.add_option("--lives", flags.lives, "how many starts by torchrun it happens in")->capture_default_str();
  app.add_option("--moment-s", flags.moment_s, "of the phase moment: so long after the constructor; every rank must be told");
  app.add_option("--strategy", flags.strategy, "of the training")->capture_default_str();
  app.add_option("--signal", flags.signal, "which it gets")->transform(CLI::CheckedTransformer(signals));
  app.add_option("--timeout-s", flags.timeout_s, "of the rendezvous and of every collective")->capture_default_str();
  app.add_flag("--children", flags.has_children, "leave processes behind that were started after connecting");
  app.add_option("--device", flags.device, "of module and batches: cpu, cuda:0")->capture_default_str();
  app.add_option("--backend", flags.backend, "of the group: auto, gloo or nccl")->capture_default_str();
  app.add_option("--audit-every", flags.audit_every, "steps between audits")->capture_default_str();
  app.add_option("--serve-store", flags.served_port, "host the ranks' store at this port instead (0: any), and print the port");
  CLI11_PARSE(app, argc, argv);
  return run(flags);
}
