#include "firkin/ddp/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "automatic_synchronizer.h"
#include "bucket_synchronizer.h"
#include "bucket_tuning.h"
#include "construction_agreement.h"
#include "firkin/base/error.h"
#include "module_state.h"
#include "no_synchronizer.h"
#include "ordered_synchronizer.h"
#include "torch_synchronizer.h"

namespace firkin {
namespace {

std::vector<int64_t> first_ready_order(const std::vector<int64_t>& given, size_t parameters) {
  std::vector<int64_t> registration_order(parameters);
  std::iota(registration_order.begin(), registration_order.end(), 0);
  if (given.empty()) return {registration_order.rbegin(), registration_order.rend()};
  if (std::ranges::is_permutation(given, registration_order)) return given;
  throw InputError(fmt::format("DataParallel: ready_order is no permutation of 0..{}", parameters - 1));
}

// What this rank can see by itself. Throws InputError.
SynchronizerSetup prepare(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options) {
  SynchronizerSetup setup{.group = std::move(group),
                          .control = {},
                          .options = std::move(options),
                          .parameters = trainable_parameters(module),
                          .buffers = module.buffers(),
                          .ready_order = {}};
  if (setup.options.timeout) setup.group.timeout = setup.options.timeout;
  if (setup.parameters.empty()) throw InputError("DataParallel: the module has no trainable parameter");
  for (const NamedTensor& parameter : setup.parameters) {
    if (can_carry(setup.group, parameter.tensor.device().type())) continue;
    throw InputError(fmt::format("DataParallel: {} is on {}, and the process group has no backend for that", parameter.name,
                                 parameter.tensor.device().str()));
  }
  if (setup.options.buckets) check_automatic(setup.options, setup.parameters);
  setup.ready_order = first_ready_order(setup.options.ready_order, setup.parameters.size());
  if (setup.options.strategy.launch == Launch::kNever) return setup;
  plan_communication(setup.parameters, setup.ready_order, setup.options);
  check_unhooked(setup.parameters);
  return setup;
}

std::unique_ptr<Synchronizer> choose_synchronizer(torch::nn::Module& module, SynchronizerSetup setup) {
  switch (setup.options.strategy.launch) {
    case Launch::kNever:
      return std::make_unique<NoSynchronizer>(setup.parameters, setup.ready_order);
    case Launch::kByTorch:
      return std::make_unique<TorchSynchronizer>(std::move(setup));
    case Launch::kAfterBackward:
    case Launch::kWhenReady:
      break;
  }
  if (setup.options.strategy.wait == Wait::kAtFirstUse) return std::make_unique<OrderedSynchronizer>(module, std::move(setup));
  if (setup.options.buckets) return std::make_unique<AutomaticSynchronizer>(std::move(setup));
  return std::make_unique<BucketSynchronizer>(std::move(setup));
}

std::unique_ptr<Synchronizer> make_synchronizer(torch::nn::Module& module, const ProcessGroup& group, DataParallelOptions options) {
  const std::vector<std::string> lines = describe(options, module);
  const bool broadcasts = options.broadcast_parameters;
  std::optional<SynchronizerSetup> setup;
  std::string problem;
  try {
    setup = prepare(module, group, std::move(options));
  } catch (const InputError& error) {
    problem = error.what();
  }
  agree_at_construction(group, lines, problem);
  setup->control = setup->options.strategy.wait == Wait::kAtFirstUse ? companion(setup->group) : setup->group;
  if (broadcasts) {
    broadcast_together(setup->group, module.parameters(), 0);
    broadcast_together(setup->group, setup->buffers, 0);
  }
  return choose_synchronizer(module, std::move(*setup));
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options)
    : module_(&module), synchronizer_(make_synchronizer(module, group, std::move(options))) {}

DataParallel::~DataParallel() = default;

void DataParallel::finish_gradient_synchronization() {
  synchronizer_->finish();
}

bool DataParallel::set_gradient_synchronization(bool on) {
  return synchronizer_->set_gradient_synchronization(on);
}

DataParallel::NoSync::NoSync(Synchronizer& synchronizer)
    : synchronizer_(synchronizer), before_(synchronizer.set_gradient_synchronization(false)) {}

DataParallel::NoSync::~NoSync() {
  synchronizer_.set_gradient_synchronization(before_);
}

DataParallel::NoSync DataParallel::no_sync() {
  return NoSync(*synchronizer_);
}

void DataParallel::Join::finish(const std::function<void()>& step) {
  while (synchronizer_.take_part_without_data()) step();
}

DataParallel::Join DataParallel::join() {
  synchronizer_->check_can_join();
  return Join(*synchronizer_);
}

void DataParallel::step(torch::optim::Optimizer& optimizer) {
  synchronizer_->step(optimizer);
}

void DataParallel::drain() {
  synchronizer_->drain();
}

torch::nn::Module& DataParallel::module() {
  drain();
  return *module_;
}

void DataParallel::abandon_step(const std::string& reason) {
  synchronizer_->abandon(reason);
}

const std::optional<StepFailure>& DataParallel::last_failure() const {
  return synchronizer_->last_failure();
}

DataParallelStats DataParallel::stats() const {
  return synchronizer_->stats();
}

const BucketPlan& DataParallel::plan() const {
  return synchronizer_->plan();
}

const std::vector<int64_t>& DataParallel::ready_order() const {
  return synchronizer_->ready_order();
}

}  // namespace firkin
