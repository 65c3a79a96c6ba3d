#include "firkin/ddp/data_parallel.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "agreement.h"
#include "automatic/automatic.h"
#include "awaiting_modules.h"
#include "optimizer_state.h"
#include "ordered/ordered.h"
#include "protocol.h"
#include "sharded/sharded.h"

namespace firkin {

// Under the strategy none, which sends nothing, there is no protocol and nothing that it needs.
struct DataParallel::Parts {
  torch::nn::Module* module = nullptr;
  std::vector<std::string> tensors;  // the parameters' names, in ready order
  std::vector<int64_t> ready_order;
  std::optional<Connections> gradient_connections;
  std::optional<Connections> control_connections;
  std::unique_ptr<StepProtocol> protocol;
  std::unique_ptr<Ordered> ordered;  // after the protocol, which these use until they are destroyed
  std::unique_ptr<Sharded> sharded;
  ForwardOverlap* overlap = nullptr;  // one of the two
  std::unique_ptr<Automatic> automatic;
  std::optional<StepFailure> no_failure;
  BucketPlan no_plan;

  // Takes connections that no other module uses. Collective.
  void connect(StepSetup& setup) {
    const ProcessGroup group = setup.group;
    gradient_connections.emplace(take_connections(group));
    control_connections.emplace(take_connections(group));
    const int64_t number = gradient_connections->number();
    if (setup.options.name.empty()) setup.options.name = fmt::format("module {}", number / 2);  // two sets each
    setup.group = gradient_connections->group();
    setup.control = control_connections->group();
    for (ProcessGroup* each : {&setup.group, &setup.control}) {
      each->timeout = group.timeout;
      each->place = WaitPlace{.wrapper = number, .step = -1, .name = setup.options.name};
    }
  }
};

namespace {

// A communication hook that fails has to fail its step before any bucket is used, so every bucket must arrive within
// the step.
void check_comm_hook(const DataParallelOptions& options) {
  const std::string& name = options.gradient_hook.name;
  if (const Strategy& strategy = options.strategy; strategy.name != "bucketed" && strategy.name != "planned") {
    throw InputError(fmt::format(
        "DataParallel: the communication hook {} with the strategy {}, under which {}; expected bucketed or planned", name, strategy.name,
        strategy.shards                      ? "no rank gets the sum of a whole bucket"
        : strategy.wait == Wait::kAtFirstUse ? "buckets arrive after the step that a failing hook should fail"
                                             : "buckets are there for comparison only"));
  }
  if (options.buckets) {
    throw InputError(
        fmt::format("DataParallel: the communication hook {} with automatic buckets, which change while it may keep a state "
                    "for each; expected a cap or a plan",
                    name));
  }
}

// PyTorch 2.13's Gloo sums these dtypes, and complex numbers as pairs of real ones. No backend of its c10d scatters or
// gathers complex numbers.
void check_dtypes(const StepSetup& setup) {
  constexpr std::array kSummed = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  for (const auto& [name, tensor] : setup.parameters) {
    const at::ScalarType dtype = tensor.scalar_type();
    if (tensor.is_complex()) {
      if (!setup.options.strategy.shards) continue;
      throw InputError(
          fmt::format("DataParallel: {} is {}, which the strategy sharded cannot send; expected another strategy, or real numbers", name,
                      c10::toString(dtype)));
    }
    if (std::ranges::find(kSummed, dtype) != kSummed.end() || !carries_by_gloo(setup.group, tensor.device().type())) continue;
    throw InputError(fmt::format("DataParallel: {} is {}, which Gloo cannot sum; expected float32, float64, float16 or bfloat16", name,
                                 c10::toString(dtype)));
  }
}

void check_layouts(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.layout() != at::kStrided) {
      throw InputError(fmt::format(
          "DataParallel: {} is sparse, and only dense tensors travel; expected a dense one, or a member that is not registered in "
          "the module",
          name));
    }
    if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) continue;
    throw InputError(
        fmt::format("DataParallel: {} is expanded, so that elements share memory and it cannot be written; expected a clone()", name));
  }
}

// Makes the setup, and checks what this rank can check by itself. Throws InputError.
StepSetup prepare(torch::nn::Module& module, const ProcessGroup& group, DataParallelOptions options) {
  StepSetup setup{.module = &module,
                  .group = group,
                  .control = group,
                  .options = std::move(options),
                  .parameters = trainable_parameters(module),
                  .initial_order = {}};
  if (const auto timeout = setup.options.timeout) {
    if (timeout->count() <= 0) throw InputError(fmt::format("DataParallel: timeout {} ms: expected more than 0", timeout->count()));
    setup.group.timeout = std::min<std::chrono::milliseconds>(*timeout, std::chrono::hours(24 * 365));  // longer ones overflow clocks
  }
  if (setup.options.strategy.launch == Launch::kByTorch) {
    throw InputError(
        "DataParallel: the strategy torch (c10d::Reducer) exists only for comparison in `firkin bench step`; expected another one");
  }
  if (setup.options.audit_every < 0) throw InputError("DataParallel: audit_every is negative; expected steps, or 0 for never");
  if (setup.parameters.empty()) throw InputError("DataParallel: the module has no trainable parameter");
  for (const NamedTensor& parameter : setup.parameters) {
    if (can_carry(setup.group, parameter.tensor.device().type())) continue;
    throw InputError(fmt::format("DataParallel: {} is on {}, for which the process group has no backend", parameter.name,
                                 parameter.tensor.device().str()));
  }
  check_layouts(parameters_in(module));
  if (setup.options.broadcast_buffers || setup.options.broadcast_parameters) check_layouts(buffers_in(module));
  if (setup.options.gradient_hook.comm_hook) check_comm_hook(setup.options);
  if (setup.options.strategy.launch != Launch::kNever) check_dtypes(setup);
  if (setup.options.strategy.wait == Wait::kAtFirstUse) {
    if (const std::string reason = why_not_awaited(setup.parameters); !reason.empty()) throw InputError("DataParallel: " + reason);
  }
  if (setup.options.strategy.shards) check_sharded(setup.options, module);
  if (setup.options.buckets) check_automatic(setup.options, setup.parameters);
  setup.initial_order = reversed_order(setup.parameters.size());
  if (const std::vector<int64_t>& given = setup.options.ready_order; !given.empty()) {
    std::vector<int64_t> descending = given;
    std::ranges::sort(descending, std::greater());
    if (descending != setup.initial_order) {
      throw InputError(fmt::format("DataParallel: ready_order is not a permutation of 0..{}", setup.parameters.size() - 1));
    }
    setup.initial_order = given;
  }
  if (setup.options.strategy.launch == Launch::kNever) return setup;
  plan_communication(setup.parameters, setup.initial_order, setup.options);
  check_unhooked(setup.parameters);
  return setup;
}

// Sends rank 0's parameters and buffers to all ranks. A rank without memory for this gives up the group, or the others
// would wait for their timeout.
void broadcast_state(const ProcessGroup& group, const torch::nn::Module& module) {
  try {
    broadcast_tensors(group, tensors_of(parameters_in(module)), 0);
    broadcast_tensors(group, tensors_of(buffers_in(module)), 0);
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception& error) {
    give_up(group, fmt::format("rank {} cannot begin: {}", group.rank, first_line(error.what())));
  }
}

// The state that an optimiser of LibTorch keeps for these parameters, undefined where it has made none yet; empty for
// other optimisers.
std::vector<NamedTensor> state_of(const torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> result;
  for (const auto& [name, parameter] : parameters) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    const auto add = [&](const char* field, at::Tensor tensor) {
      result.push_back({fmt::format("the optimiser's {} of {}", field, name), std::move(tensor)});
    };
    const OptimizerStateFields fields = fields_of(*state->second);
    if (fields.step != nullptr) add("step", at::scalar_tensor(*fields.step, at::kLong));
    for (const auto& [field, tensor] : fields.tensors) add(field, *tensor);
  }
  return result;
}

// What the optimiser steps besides the module's parameters, named "tensor 2 of the optimiser's group 0". Leaves out
// parameters of other wrapped modules, which may be in flight and are audited there.
std::vector<NamedTensor> outside_of(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> inside;
  for (const NamedTensor& parameter : parameters_in(module)) inside.insert(parameter.tensor.unsafeGetTensorImpl());
  std::vector<NamedTensor> outside;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const std::vector<at::Tensor>& tensors = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (inside.contains(tensors[i].unsafeGetTensorImpl()) || is_hooked(tensors[i])) continue;
      outside.push_back({fmt::format("tensor {} of the optimiser's group {}", i, group), tensors[i]});
    }
  }
  return outside;
}

}  // namespace

StepError::StepError(StepFailure failure)
    : RuntimeError(fmt::format("step {} failed on rank {}: {}", failure.step, failure.rank, failure.reason)),
      failure_(std::move(failure)) {}

// Every path makes the same collective calls, so that a rank which fails does not leave the others waiting.
DataParallel::DataParallel(torch::nn::Module& module, const ProcessGroup& group, DataParallelOptions options)
    : parts_(std::make_unique<Parts>()) {
  const std::vector<std::string> lines = describe(options, module);
  const bool broadcasts = options.broadcast_parameters;
  std::optional<StepSetup> setup;
  std::optional<std::string> problem;
  try {
    setup = prepare(module, group, std::move(options));
  } catch (const InputError& error) {
    problem = error.what();
  }
  agree_to_begin(group, problem);
  if (const std::string difference = difference_between_ranks(group, lines); !difference.empty()) throw RuntimeError(difference);
  parts_->module = &module;
  parts_->ready_order = setup->initial_order;
  for (const int64_t parameter : setup->initial_order) parts_->tensors.push_back(setup->parameters[static_cast<size_t>(parameter)].name);
  if (setup->options.strategy.launch == Launch::kNever) {
    if (broadcasts) broadcast_state(group, module);
    return;
  }
  const bool is_sharded = setup->options.strategy.shards;
  const bool is_ordered = setup->options.strategy.wait == Wait::kAtFirstUse && !is_sharded;
  const auto slices = std::make_shared<SlicedReduction>();
  setup->reduction = is_sharded ? slices : make_reduction(setup->options.gradient_hook);
  parts_->connect(*setup);
  if (broadcasts) broadcast_state(group, module);
  try {
    parts_->protocol = std::make_unique<StepProtocol>(std::move(*setup));
  } catch (const std::exception& error) {  // for example no memory for the buckets
    problem = first_line(error.what());
  }
  agree_to_begin(group, problem);
  StepProtocol& protocol = *parts_->protocol;
  const StepSetup& used = protocol.setup();
  GradientPipe& pipe = protocol.pipe();
  if (is_ordered) parts_->overlap = (parts_->ordered = std::make_unique<Ordered>(protocol, used, pipe)).get();
  if (is_sharded) parts_->overlap = (parts_->sharded = std::make_unique<Sharded>(protocol, used, pipe, slices)).get();
  if (used.options.buckets) parts_->automatic = std::make_unique<Automatic>(used, pipe, parts_->ordered.get());
  std::vector<StepExtension*> extensions = {parts_->overlap, parts_->automatic.get()};
  std::erase(extensions, nullptr);
  protocol.add_hooks(std::move(extensions));
}

DataParallel::~DataParallel() {
  if (!parts_->protocol) return;
  parts_->protocol->remove_hooks();
  const bool is_quiet = !parts_->protocol->is_step_open() && !parts_->protocol->is_lost() &&
                        parts_->protocol->pipe().not_received().empty() && !(parts_->sharded && parts_->sharded->is_gathering());
  parts_->automatic.reset();
  parts_->ordered.reset();
  parts_->sharded.reset();
  if (is_quiet) return;
  parts_->gradient_connections->abandon();
  parts_->control_connections->abandon();
}

void DataParallel::finish_gradient_synchronization() {
  if (parts_->protocol) parts_->protocol->finish_gradient_synchronization();
}

bool DataParallel::set_gradient_synchronization(bool on) {
  return parts_->protocol ? parts_->protocol->set_gradient_synchronization(on) : true;
}

void DataParallel::join(const std::function<void()>& step) {
  while (parts_->protocol && parts_->protocol->take_part_without_data()) step();
}

void DataParallel::parameters_changed() {
  drain();
  if (parts_->sharded) parts_->sharded->complete_gathers();
  if (parts_->protocol) parts_->protocol->parameters_changed();
}

void DataParallel::audit() {
  drain();
  if (parts_->protocol) parts_->protocol->audit();
}

void DataParallel::audit_optimizer(const torch::optim::Optimizer& optimizer) {
  StepProtocol* protocol = parts_->protocol.get();
  if (protocol == nullptr) return;
  if (dynamic_cast<const ForeignOptimizer*>(&optimizer) != nullptr) return;  // Python keeps its states, and audits them by audit_tensors()
  protocol->add_audited(&optimizer, [protocol, &optimizer] {
    std::vector<NamedTensor> audited = outside_of(*protocol->setup().module, optimizer);
    std::vector<NamedTensor> stepped = protocol->setup().parameters;
    stepped.insert(stepped.end(), audited.begin(), audited.end());
    for (NamedTensor& state : state_of(optimizer, stepped)) audited.push_back(std::move(state));
    return audited;
  });
}

void DataParallel::audit_tensors(std::function<std::vector<NamedTensor>()> tensors) {
  if (parts_->protocol) parts_->protocol->add_audited(nullptr, std::move(tensors));
}

void DataParallel::forget_audited(const torch::optim::Optimizer& optimizer) {
  if (parts_->protocol) parts_->protocol->forget_audited(&optimizer);
}

void DataParallel::step(torch::optim::Optimizer& optimizer) {
  if (parts_->sharded) throw InputError("OverlappedOptimizer under the strategy sharded; expected a ShardedOptimizer");
  if (parts_->ordered) {
    parts_->ordered->step(optimizer);
  } else {
    optimizer.step();
  }
  count_optimizer_step(&optimizer);
}

void DataParallel::count_optimizer_step(const void* optimizer) {
  if (parts_->protocol) parts_->protocol->count_optimizer_step(optimizer);
}

void DataParallel::add_hooks_to_others(const std::vector<NamedTensor>& parameters) {
  if (parts_->protocol) parts_->protocol->add_hooks_to_others(parameters);
}

void DataParallel::drain() {
  if (parts_->overlap != nullptr) parts_->overlap->drain();
}

void DataParallel::receive_parameters(const torch::nn::Module& part) {
  if (parts_->overlap != nullptr) parts_->overlap->receive_parameters(part);
}

Sharded& DataParallel::sharded() {
  if (parts_->sharded) return *parts_->sharded;
  throw InputError("ShardedOptimizer under another strategy; expected a DataParallel with the strategy sharded");
}

torch::nn::Module& DataParallel::module() {
  drain();
  return *parts_->module;
}

void DataParallel::abandon_step(const std::string& reason) {
  if (parts_->protocol) parts_->protocol->abandon_step(reason, std::current_exception());
}

const std::optional<StepFailure>& DataParallel::last_failure() const {
  return parts_->protocol ? parts_->protocol->last_failure() : parts_->no_failure;
}

DataParallelStats DataParallel::stats() const {
  if (!parts_->protocol) return {.tensors = parts_->tensors, .buckets = {}};
  DataParallelStats stats = parts_->protocol->stats();
  if (parts_->overlap != nullptr) parts_->overlap->add_to(stats);
  if (parts_->automatic) stats.automatic = parts_->automatic->phase();
  return stats;
}

void DataParallel::observe_steps(std::function<void()> observer) {
  if (parts_->protocol) parts_->protocol->observe_steps(std::move(observer));
}

const BucketPlan& DataParallel::plan() const {
  return parts_->protocol ? parts_->protocol->pipe().communication().plan : parts_->no_plan;
}

const std::vector<int64_t>& DataParallel::ready_order() const {
  return parts_->protocol ? parts_->protocol->pipe().ready_order() : parts_->ready_order;
}

}  // namespace firkin
