#include "optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace firkin {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

template <typename Options>
bool assign_as(OptimizerOptions& to, const OptimizerOptions& from) {
  auto* const known = dynamic_cast<Options*>(&to);
  if (known == nullptr) return false;
  *known = dynamic_cast<const Options&>(from);
  return true;
}

template <typename State>
OptimizerStateFields adam_fields(State& state) {
  return {.step = &state.step(),
          .tensors = {{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}, {"max_exp_avg_sq", &state.max_exp_avg_sq()}}};
}

std::vector<std::unique_ptr<OptimizerOptions>> options_of(const torch::optim::Optimizer& optimizer) {
  std::vector<std::unique_ptr<OptimizerOptions>> options;
  for (const auto& group : optimizer.param_groups()) options.push_back(group.options().clone());
  return options;
}

void set_options(torch::optim::Optimizer& optimizer, const std::vector<std::unique_ptr<OptimizerOptions>>& options) {
  for (size_t i = 0; i < options.size(); ++i) assign(optimizer.param_groups()[i].options(), *options[i]);
}

}  // namespace

void assign(OptimizerOptions& to, const OptimizerOptions& from) {
  using namespace torch::optim;
  if (dynamic_cast<ForeignOptions*>(&to) != nullptr) return;
  if (assign_as<SGDOptions>(to, from) || assign_as<AdamOptions>(to, from) || assign_as<AdamWOptions>(to, from)) return;
  if (assign_as<RMSpropOptions>(to, from) || assign_as<AdagradOptions>(to, from)) return;
  to.set_lr(from.get_lr());
}

StepInParts::StepInParts(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer), before_(options_of(optimizer)) {}

void StepInParts::run() {
  has_run_ = true;
  const auto current = options_of(*optimizer_);
  set_options(*optimizer_, before_);
  optimizer_->step();
  set_options(*optimizer_, current);
}

OptimizerStateFields fields_of(OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) return {.tensors = {{"momentum", &sgd->momentum_buffer()}}};
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return adam_fields(*adam);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return adam_fields(*adamw);
  if (auto* rms = dynamic_cast<RMSpropParamState*>(&state)) {
    return {.step = &rms->step(),
            .tensors = {{"square_avg", &rms->square_avg()}, {"momentum", &rms->momentum_buffer()}, {"grad_avg", &rms->grad_avg()}}};
  }
  if (auto* ada = dynamic_cast<AdagradParamState*>(&state)) return {.step = &ada->step(), .tensors = {{"sum", &ada->sum()}}};
  return {};
}

std::unique_ptr<OptimizerParamState> make_state(const OptimizerOptions& options) {
  using namespace torch::optim;
  if (dynamic_cast<const SGDOptions*>(&options) != nullptr) return std::make_unique<SGDParamState>();
  if (dynamic_cast<const AdamOptions*>(&options) != nullptr) return std::make_unique<AdamParamState>();
  if (dynamic_cast<const AdamWOptions*>(&options) != nullptr) return std::make_unique<AdamWParamState>();
  if (dynamic_cast<const RMSpropOptions*>(&options) != nullptr) return std::make_unique<RMSpropParamState>();
  if (dynamic_cast<const AdagradOptions*>(&options) != nullptr) return std::make_unique<AdagradParamState>();
  return nullptr;
}

}  // namespace firkin
