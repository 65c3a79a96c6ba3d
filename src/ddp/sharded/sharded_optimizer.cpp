#include "firkin/ddp/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "comm/across_ranks.h"
#include "ddp/agreement.h"
#include "firkin/base/error.h"
#include "sharded.h"

#include <torch/serialize/archive.h>

namespace firkin {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

// The optimiser's group that has the tensor; null if none has.
template <typename SomeOptimizer>
auto* group_of(SomeOptimizer& optimizer, const at::Tensor& tensor) {
  auto& groups = optimizer.param_groups();
  const auto group = std::ranges::find_if(groups, [&](const OptimizerParamGroup& each) {
    return std::ranges::any_of(each.params(), [&](const at::Tensor& stepped) { return stepped.is_same(tensor); });
  });
  return group == groups.end() ? nullptr : &*group;
}

template <typename Parts>
auto part_of(Parts& parts, const at::Tensor& parameter) {
  return std::ranges::find_if(parts, [&](const ParameterPart& part) { return part.parameter.is_same(parameter); });
}

bool has_run(const std::vector<ParameterPart>& parts, const at::Tensor& run) {
  return std::ranges::any_of(parts, [&](const ParameterPart& part) { return part.run.tensor.is_same(run); });
}

using States = std::remove_reference_t<decltype(std::declval<Optimizer&>().state())>;

// All elements, in order, of a tensor of which each rank holds a run. Exact, because bytes of one rank are added to
// zeros.
at::Tensor gather_runs(const ProcessGroup& group, const at::Tensor& run, const ParameterPart& part) {
  at::Tensor whole = at::zeros({part.parameter.numel()}, part.run.tensor.options().requires_grad(false).memory_format(std::nullopt));
  if (run.defined()) part.within(whole, part.begin).copy_(run);
  if (whole.numel() > 0) all_reduce(group, whole.view(at::kByte));
  return whole;
}

// This rank's elements of a tensor of the whole parameter.
at::Tensor cut(const at::Tensor& tensor, const ParameterPart& part) {
  const at::Tensor& parameter = part.parameter;
  if (tensor.sizes() != parameter.sizes()) {
    throw InputError(fmt::format("ShardedOptimizer: the state of {} has the shape [{}]; expected the parameter's, [{}]", part.run.name,
                                 fmt::join(tensor.sizes(), ", "), fmt::join(parameter.sizes(), ", ")));
  }
  at::Tensor laid_out = at::empty_strided(parameter.sizes(), parameter.strides(), part.run.tensor.options().requires_grad(false));
  return part.within(laid_out.copy_(tensor), part.begin).clone();
}

// Calls use(part, its group in `optimizer`, its group in `whole`) for every part that the optimiser steps. Before the
// first call, throws InputError unless all of them fit.
template <typename Whole, typename Use>
void for_each_pair(Optimizer& optimizer, Whole& whole, const std::vector<ParameterPart>& parts, Use use) {
  for (const bool is_checked : {false, true}) {
    for (size_t i = 0; i < parts.size(); ++i) {
      OptimizerParamGroup* here = group_of(optimizer, parts[i].run.tensor);
      if (here == nullptr) continue;
      auto* there = group_of(whole, parts[i].parameter);
      const auto same_class = [](const auto& a, const auto& b) { return typeid(a) == typeid(b); };
      if (there == nullptr || !same_class(there->options(), here->options())) {
        throw InputError(
            fmt::format("ShardedOptimizer: the other optimiser does not step {}, or is of another class; expected the same class "
                        "over the module's parameters in the same groups",
                        parts[i].run.name));
      }
      if (is_checked) use(i, *here, *there);
    }
  }
}

// The options of each group of an optimiser of LibTorch, as bytes.
std::vector<NamedTensor> group_options_of(const torch::optim::Optimizer& optimizer) {
  std::vector<NamedTensor> result;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    torch::serialize::OutputArchive archive;
    optimizer.param_groups()[group].options().serialize(archive);
    std::ostringstream written;
    archive.save_to(written);
    std::string bytes = std::move(written).str();
    const at::Tensor view = at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte);
    result.push_back({fmt::format("the set of options of the optimiser's group {}", group), view.clone()});
  }
  return result;
}

}  // namespace

// Calls take(part, state) for every part of which some rank has a state. `state` is that of the whole parameter, with
// 1-d tensors. Only one such state at a time is in memory. Collective.
void Sharded::gather_states(c10::function_ref<void(size_t part, State whole)> take) {
  constexpr size_t kFacts = 3;  // per part: whether there is a state, its step, and a bit for each tensor that it has
  const ProcessGroup& group = setup_.group;
  std::vector<double> facts;
  for (const ParameterPart& part : parts_) {
    const auto known = optimizer_->state().find(part.run.tensor.unsafeGetTensorImpl());
    if (known == optimizer_->state().end()) {
      facts.insert(facts.end(), kFacts, 0);
      continue;
    }
    const OptimizerStateFields fields = fields_of(*known->second);
    int64_t bits = 0;
    for (size_t i = 0; i < fields.tensors.size(); ++i) bits |= static_cast<int64_t>(fields.tensors[i].second->defined()) << i;
    facts.insert(facts.end(), {1, fields.step == nullptr ? 0 : static_cast<double>(*fields.step), static_cast<double>(bits)});
  }
  facts = max_over_ranks(setup_.control, facts);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const double* fact = &facts[p * kFacts];
    if (fact[0] == 0) continue;
    const at::Tensor& run = parts_[p].run.tensor;
    const auto known = optimizer_->state().find(run.unsafeGetTensorImpl());
    State whole = make_state(group_of(*optimizer_, run)->options());
    const OptimizerStateFields fields = fields_of(*whole);
    if (fields.step != nullptr) *fields.step = static_cast<int64_t>(fact[1]);
    for (size_t i = 0; i < fields.tensors.size(); ++i) {
      if ((static_cast<int64_t>(fact[2]) >> i & 1) == 0) continue;
      const bool is_here = known != optimizer_->state().end() && parts_[p].count > 0;
      *fields.tensors[i].second = gather_runs(group, is_here ? *fields_of(*known->second).tensors[i].second : at::Tensor(), parts_[p]);
    }
    take(p, std::move(whole));
  }
}

// Switches to other parts. A parameter that stays keeps its run's tensor, and each rank gets the elements of its state
// that it steps now. The part of a frozen parameter stays on this rank.
void Sharded::replace_parts(std::vector<ParameterPart> parts) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> in_module = setup_.module->parameters();
  for (const ParameterPart& old : parts_) {
    const bool is_left = std::ranges::none_of(in_module, [&](const at::Tensor& each) { return each.is_same(old.parameter); });
    if (is_left || part_of(parts, old.parameter) != parts.end()) continue;
    parts.push_back(old);
    parts.back().bucket = -1;
  }
  States states;
  if (optimizer_ != nullptr) {
    gather_states([&](size_t p, State whole) {
      const auto now = part_of(parts, parts_[p].parameter);
      if (now == parts.end()) return;
      for (const auto& [name, tensor] : fields_of(*whole).tensors) {
        if (tensor->defined()) *tensor = now->within(*tensor, now->begin).clone();
      }
      states[parts_[p].run.tensor.unsafeGetTensorImpl()] = std::move(whole);
    });
  }
  for (const ParameterPart& old : parts_) {
    const auto now = part_of(parts, old.parameter);
    if (old.has_master()) {
      const at::Tensor whole = gather_runs(setup_.group, old.count > 0 ? old.run.tensor : at::Tensor(), old);
      if (now != parts.end()) now->run.tensor = now->within(whole, now->begin).clone();
    }
    if (now == parts.end()) continue;
    old.run.tensor.set_data(now->run.tensor);
    now->run.tensor = old.run.tensor;
  }
  if (optimizer_ != nullptr) {
    regroup(parts);
    optimizer_->state() = std::move(states);
  }
  parts_ = std::move(parts);
}

// Removes from the optimiser's groups the parts that have gone, and adds new ones to the first group.
void Sharded::regroup(const std::vector<ParameterPart>& parts) {
  for (OptimizerParamGroup& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), [&](const at::Tensor& run) { return !has_run(parts, run); });
  }
  for (const ParameterPart& part : parts) {
    if (!has_run(parts_, part.run.tensor)) optimizer_->param_groups()[0].params().push_back(part.run.tensor);
  }
}

ShardedOptimizer::ShardedOptimizer(DataParallel& ddp, const MakeOptimizer& make_optimizer, const ShardedOptions& options)
    : sharded_(&ddp.sharded()) {
  if (sharded_->optimizer_ != nullptr) throw InputError("ShardedOptimizer: this DataParallel already has one; expected one");
  StepProtocol& protocol = sharded_->protocol_;
  {
    const auto held = protocol.enter();
    const WaitPlaces::Call call(protocol.places(), "ShardedOptimizer()");
    const std::string difference = difference_between_ranks(
        sharded_->setup_.control,
        {fmt::format("master_weights {}", options.master_weights), fmt::format("whole_parameters {}", options.whole_parameters)});
    if (!difference.empty()) throw InputError(difference);
    if (options.master_weights || options.whole_parameters) {  // otherwise buckets are already divided in this way
      sharded_->options_ = options;
      sharded_->divide();
    }
  }
  optimizer_ = make_optimizer(sharded_->parts());
  if (optimizer_ == nullptr) throw InputError("ShardedOptimizer: make_optimizer returned nothing; expected an optimiser over the parts");
  const bool is_foreign = dynamic_cast<const ForeignOptimizer*>(optimizer_.get()) != nullptr;
  for (const OptimizerParamGroup& group : optimizer_->param_groups()) {
    if (!is_foreign && make_state(group.options()) == nullptr) {
      throw InputError("ShardedOptimizer: expected LibTorch's SGD, Adam, AdamW, RMSprop or Adagrad, which work element by element");
    }
    if (std::ranges::all_of(group.params(), [&](const at::Tensor& tensor) { return has_run(sharded_->parts_, tensor); })) continue;
    throw InputError("ShardedOptimizer: the optimiser has a tensor that is not one of the parts; expected only parts");
  }
  const auto held = protocol.enter();
  sharded_->optimizer_ = optimizer_.get();
  if (is_foreign) return;
  // Audits the options themselves: ranks step different parts, so that with different options their parameters would
  // not differ.
  protocol.add_audited(optimizer_.get(), [optimizer = optimizer_.get()] { return group_options_of(*optimizer); });
}

ShardedOptimizer::~ShardedOptimizer() {
  try {
    sharded_->drain();
  } catch (const std::exception& error) {
    TORCH_WARN("ShardedOptimizer: cannot complete the parameters of the last step: ", error.what());
  }
  sharded_->protocol_.forget_audited(optimizer_.get());
  const auto held = sharded_->protocol_.lock();
  sharded_->optimizer_ = nullptr;
}

void ShardedOptimizer::step() {
  sharded_->step();
}

double ShardedOptimizer::clip_gradients(double max_norm) {
  return sharded_->clip_gradients(max_norm);
}

void ShardedOptimizer::gather_into(Optimizer& whole, std::optional<int> to) {
  const auto held = sharded_->protocol_.enter();
  sharded_->stream_mark().follow();
  const at::NoGradGuard no_grad;
  const int rank = sharded_->setup_.group.rank;
  const WaitPlaces::Call call(sharded_->protocol_.places(), "gather_into()");
  for_each_pair(*optimizer_, whole, sharded_->parts_, [&](size_t p, OptimizerParamGroup& here, OptimizerParamGroup& there) {
    assign(there.options(), here.options());
    whole.state().erase(sharded_->parts_[p].parameter.unsafeGetTensorImpl());
  });
  sharded_->protocol_.or_lose_group([&] {
    sharded_->gather_states([&](size_t p, Sharded::State state) {
      if (to.value_or(rank) != rank) return;
      const at::Tensor& parameter = sharded_->parts_[p].parameter;
      for (const auto& [name, tensor] : fields_of(*state).tensors) {
        if (tensor->defined()) *tensor = tensor->as_strided(parameter.sizes(), parameter.strides()).variable_data();
      }
      whole.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    });
  });
}

void ShardedOptimizer::load_from(const Optimizer& whole) {
  const auto held = sharded_->protocol_.enter();
  sharded_->stream_mark().follow();
  const at::NoGradGuard no_grad;
  States states;
  for_each_pair(*optimizer_, whole, sharded_->parts_, [&](size_t p, OptimizerParamGroup& here, const OptimizerParamGroup& there) {
    const ParameterPart& part = sharded_->parts_[p];
    assign(here.options(), there.options());
    const auto known = whole.state().find(part.parameter.unsafeGetTensorImpl());
    if (known == whole.state().end()) return;
    Sharded::State state = known->second->clone();
    for (const auto& [name, tensor] : fields_of(*state).tensors) {
      if (tensor->defined()) *tensor = cut(*tensor, part);
    }
    states[part.run.tensor.unsafeGetTensorImpl()] = std::move(state);
  });
  optimizer_->state() = std::move(states);
  sharded_->stream_mark().set();
}

std::vector<NamedTensor> ShardedOptimizer::gather_masters(std::optional<int> to) {
  const auto held = sharded_->protocol_.enter();
  sharded_->stream_mark().follow();
  const WaitPlaces::Call call(sharded_->protocol_.places(), "gather_masters()");
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> masters;
  sharded_->protocol_.or_lose_group([&] {
    for (const ParameterPart& part : sharded_->parts_) {
      if (!part.has_master()) continue;
      const ProcessGroup& group = sharded_->setup_.group;
      const at::Tensor whole = gather_runs(group, part.count > 0 ? part.run.tensor : at::Tensor(), part);
      if (to.value_or(group.rank) != group.rank) continue;
      masters.push_back({part.run.name, whole.as_strided(part.parameter.sizes(), part.parameter.strides()).variable_data()});
    }
  });
  return masters;
}

void ShardedOptimizer::load_masters(const std::vector<NamedTensor>& masters) {
  const auto held = sharded_->protocol_.enter();
  sharded_->stream_mark().follow();
  const at::NoGradGuard no_grad;
  for (const auto& [name, master] : masters) {
    const auto part =
        std::ranges::find_if(sharded_->parts_, [&](const ParameterPart& each) { return each.run.name == name && each.has_master(); });
    if (part == sharded_->parts_.end()) throw InputError(fmt::format("ShardedOptimizer: '{}' has no master weights here", name));
    part->run.tensor.copy_(cut(master, *part));
  }
  sharded_->stream_mark().set();
}

}  // namespace firkin
