#include "sharded.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/where.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr const char* kUnusedParts =
    "this rank did not use the gradients of the last step, though others may have; expected ShardedOptimizer::step() on every rank "
    "after each synchronising backward that succeeds (accumulate under no_sync())";

// The part's elements in its parameter, in the run's shape. Autograd does not know the result as a view.
at::Tensor elements_of(const ParameterPart& part) {
  return part.within(part.parameter.variable_data(), part.begin).variable_data();
}

// Whether the elements of both tensors lie in the same order in memory.
bool are_laid_out_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

at::Tensor first_run(const ParameterPart& part, const ShardedOptions& options) {
  const at::Tensor parameter = part.parameter.variable_data();
  at::Tensor run = parameter;
  if (!options.whole_parameters) {
    run = parameter.as_strided({part.count}, {1}, parameter.storage_offset() + part.begin).variable_data();
  } else if (part.count == 0 && parameter.numel() > 0) {
    run = (parameter.dim() == 0 ? parameter.view(1) : parameter).narrow(0, 0, 0).variable_data();
  }
  const bool is_short = parameter.is_floating_point() && static_cast<size_t>(parameter.element_size()) < sizeof(float);
  return options.master_weights && is_short ? run.to(at::kFloat) : run;
}

}  // namespace

void check_sharded(const DataParallelOptions& options, const torch::nn::Module& module) {
  if (const std::string reason = why_not_sharded(module); !reason.empty()) throw InputError("DataParallel: " + reason);
  if (!options.gradient_hook.wire_dtype) return;
  throw InputError("DataParallel: the strategy sharded takes no gradient hook, because it sums gradients itself; expected none");
}

std::string why_not_sharded(const torch::nn::Module& module) {
  std::unordered_map<const torch::nn::Module*, std::string> first_names;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const auto [first, is_new] = first_names.emplace(item.value().get(), item.key());
    if (is_new || trainable_parameters(*item.value()).empty()) continue;
    return fmt::format(
        "the module {} is {} as well, and LibTorch's optimisers step its parameters twice, which the strategy sharded does not; expected "
        "it registered once",
        item.key(), first->second);
  }
  return "";
}

Sharded::Sharded(StepProtocol& protocol, const StepSetup& setup, GradientPipe& pipe, std::shared_ptr<SlicedReduction> slices)
    : ForwardOverlap(protocol, setup, kUnusedParts), slices_(std::move(slices)) {
  Sharded::renewed(pipe);
}

Sharded::~Sharded() {
  modules_.reset();
  if (has_gradients_) {
    TORCH_WARN("DataParallel: destroyed before the optimiser stepped: ", kUnusedParts);
  }
}

std::vector<NamedTensor> Sharded::parts() const {
  std::vector<NamedTensor> runs;
  for (size_t i = 0; i < trained_count(); ++i) runs.push_back(parts_[i].run);
  return runs;
}

void Sharded::divide() {
  const GradientBuckets& buckets = *pipe().buckets();
  std::vector<SlicedBucket> sliced(static_cast<size_t>(buckets.bucket_count()));
  if (options_.whole_parameters) {
    const std::vector<SliceLengths> lengths = lengths_of_whole_parameters();
    std::ranges::transform(lengths, sliced.begin(), [](const SliceLengths& each) { return SlicedBucket(each); });
  }
  slices_->divide(std::move(sliced));
  std::vector<ParameterPart> parts;
  for (size_t i = 0; i < setup_.parameters.size(); ++i) {
    const auto& [name, parameter] = setup_.parameters[i];
    ParameterPart part{.parameter = parameter, .run = {.name = name, .tensor = {}}};
    part.position = pipe().position_of(i);
    part.bucket = buckets.bucket_of(part.position);
    const SliceRange slice = (*slices_)[part.bucket].own_range(setup_.group, flat(part.bucket).numel());
    const int64_t offset = buckets.offset(part.position);
    part.begin = std::clamp<int64_t>(slice.begin - offset, 0, parameter.numel());
    part.count = std::clamp<int64_t>(slice.begin + slice.count - offset, 0, parameter.numel()) - part.begin;
    part.in_bucket = offset + part.begin;
    part.run.tensor = first_run(part, options_);
    parts.push_back(std::move(part));
  }
  replace_parts(std::move(parts));
}

// Slice lengths, by bucket. A rank's need in a bucket is what the rank lacks of an even share of all buckets up to this
// one. The ranks' needs are laid end to end along the bucket, and each parameter goes to the rank whose need holds its
// middle.
std::vector<SliceLengths> Sharded::lengths_of_whole_parameters() const {
  const GradientBuckets& buckets = *pipe().buckets();
  const auto ranks = static_cast<size_t>(setup_.group.size);
  std::vector<SliceLengths> all;
  std::vector<double> load(ranks, 0);
  double total = 0;
  for (const Bucket& bucket : buckets.plan().buckets) {
    const int64_t elements = flat(static_cast<int64_t>(all.size())).numel();
    total += static_cast<double>(elements);
    std::vector<double> needs;
    for (const double of_rank : load) needs.push_back(std::max(0.0, total / static_cast<double>(ranks) - of_rank));
    const double per_element = std::accumulate(needs.begin(), needs.end(), 0.0) / static_cast<double>(elements);
    SliceLengths lengths(ranks, 0);
    size_t rank = 0;
    double end_of_needs = needs[0];
    for (int64_t position = bucket.first; position < bucket.first + bucket.count; ++position) {
      const at::Tensor& gradient = buckets.view(position);
      const double middle = static_cast<double>(buckets.offset(position)) + static_cast<double>(gradient.numel()) / 2;
      while (rank + 1 < ranks && end_of_needs < middle * per_element) end_of_needs += needs[++rank];
      lengths[rank] += gradient.numel();
    }
    lengths[rank] += elements - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});  // the zeros at the end
    for (size_t i = 0; i < ranks; ++i) load[i] += static_cast<double>(lengths[i]);
    all.push_back(std::move(lengths));
  }
  return all;
}

void Sharded::renewed(GradientPipe& pipe) {
  ForwardOverlap::renewed(pipe);
  divide();
  first_use_.clear();
}

void Sharded::complete_gathers() {
  const auto held = protocol_.enter();
  protocol_.or_lose_group([&] { begin(); });
}

// Receives all parameters that are in flight. If the optimiser has not stepped, first makes the gathers that other
// ranks wait for, so that all ranks have the same parameters.
void Sharded::begin() {
  stream_mark().follow();
  if (std::exchange(has_gradients_, false)) {
    is_last_step_unused_ = true;
    forget_gradients();
    for (const int64_t bucket : gather_order()) gather(bucket);
  }
  receive_all();
}

void Sharded::check(std::optional<size_t> gradient) {
  if (optimizer_ == nullptr) {
    throw RuntimeError("DataParallel: backward ran under the strategy sharded without an optimiser; expected a ShardedOptimizer first");
  }
  ForwardOverlap::check(gradient);
}

void Sharded::received(const StepAgreement& agreement, bool is_first) {
  if (is_first) {
    modules_->learn();
    std::vector<int64_t> first_use;
    for (size_t i = 0; i < trained_count(); ++i) first_use.push_back(modules_->first_use(i));
    first_use_ = list_of_rank(setup_.control, first_use, agreement.first_with_data());
  }
  for (size_t i = 0; i < trained_count(); ++i) {
    const ParameterPart& part = parts_[i];
    if (part.count == 0 || !pipe().is_wanted(i)) continue;
    at::Tensor& gradient = part.run.tensor.mutable_grad();
    gradient = part.within(flat(part.bucket), part.in_bucket).variable_data().to(part.run.tensor.scalar_type());
    gradient.unsafeGetTensorImpl()->bump_version();  // for held_elsewhere(): not one that autograd made
  }
  stream_mark().set();
  has_gradients_ = true;
  is_late_.assign(is_late_.size(), false);
  begin_forward();
}

void Sharded::forget_gradients() {
  for (const ParameterPart& part : parts_) part.run.tensor.mutable_grad().reset();
}

// Buckets in the order in which forward needs them. Before that is known: those that backward fills last go first.
std::vector<int64_t> Sharded::gather_order() const {
  std::vector<int64_t> order = reversed_order(static_cast<size_t>(pipe().buckets()->bucket_count()));
  if (first_use_.empty()) return order;
  const std::vector<int64_t> first_use = first_use_of_buckets(first_use_);
  std::ranges::stable_sort(order, {}, [&first_use](int64_t bucket) { return first_use[static_cast<size_t>(bucket)]; });
  return order;
}

// Takes over what the program has done to parameters: it may have given one other memory, as torch::load() does, or
// values that differ from its master.
void Sharded::follow_parameters() {
  const at::NoGradGuard no_grad;
  for (const ParameterPart& part : parts_) {
    if (part.bucket >= 0 && !are_laid_out_alike(part.parameter, pipe().buckets()->view(part.position))) {
      throw InputError(
          fmt::format("ShardedOptimizer: the shape or the memory layout of {} changed after wrapping; expected the change (to "
                      "channels_last, say) before",
                      part.run.name));
    }
    if (part.has_master()) {
      const at::Tensor now = elements_of(part);
      const at::Tensor is_new = now.ne(part.run.tensor.to(now.scalar_type()));
      if (!now.is_cpu() || is_new.any().item<bool>()) {  // to ask a device is to wait for it
        part.run.tensor.copy_(at::where(is_new, now.to(at::kFloat), part.run.tensor));
      }
      keep_for_current_stream(part.run.tensor);
      continue;
    }
    const auto* memory = static_cast<const char*>(part.parameter.const_data_ptr()) + part.begin * part.parameter.element_size();
    if (part.count == 0 || part.run.tensor.const_data_ptr() == memory) continue;
    part.run.tensor.set_data(elements_of(part));
  }
}

void Sharded::step() {
  const auto held = enter_after_step();
  has_gradients_ ? step_buckets() : check_no_gradients();
  protocol_.count_optimizer_step(optimizer_);
}

// Throws InputError if a parameter has a gradient, which no sum contains.
void Sharded::check_no_gradients() const {
  const auto& parameters = setup_.parameters;
  const auto found = std::ranges::find_if(parameters, [](const NamedTensor& each) { return each.tensor.grad().defined(); });
  if (found == parameters.end()) return;
  throw InputError(fmt::format(
      "ShardedOptimizer: {} has a gradient that no synchronising backward has summed over the ranks; expected a backward() outside of "
      "no_sync() before each step()",
      found->name));
}

void Sharded::step_buckets() {
  stream_mark().follow();
  follow_parameters();  // if this throws, begin() makes the gathers that other ranks wait for
  has_gradients_ = false;
  std::vector<at::Tensor> gradients;  // the optimiser does not see them until it is their bucket's turn
  for (const ParameterPart& part : parts_) {
    gradients.push_back(std::exchange(part.run.tensor.mutable_grad(), {}));
    if (gradients.back().defined()) keep_for_current_stream(gradients.back());
  }
  protocol_.or_lose_group([&] {  // the other ranks wait for this one's parameters
    const std::vector<int64_t> order = gather_order();
    StepInParts step(*optimizer_);
    for (const int64_t bucket : order) {
      step_bucket(bucket, gradients, step);
      gather(bucket);
    }
    if (!step.has_run()) step.run();  // this rank has no part, but its optimiser must count as many steps as the others'
    for (const int64_t bucket : order) {
      if (!may_be_late(bucket)) receive(bucket);
    }
  });
  stream_mark().set();
  // Parameters count as written to, even those that are still in flight: autograd must refuse a graph from before this
  // step.
  for (size_t i = 0; i < trained_count(); ++i) {
    if (pipe().is_wanted(i)) parts_[i].parameter.unsafeGetTensorImpl()->bump_version();
  }
  modules_->begin_forward();  // a forward between backward and this step has awaited the old parameters
  for (size_t i = 0; i < trained_count(); ++i) is_late_[i] = (*slices_)[parts_[i].bucket].is_gathering();
}

void Sharded::step_bucket(int64_t bucket, const std::vector<at::Tensor>& gradients, StepInParts& step) {
  RECORD_USER_SCOPE("optimiser");
  bool any = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].bucket != bucket || !gradients[i].defined()) continue;
    parts_[i].run.tensor.mutable_grad() = gradients[i];
    any = true;
  }
  if (!any) return;
  step.run();
  forget_gradients();
  for (size_t i = 0; i < parts_.size(); ++i) {
    // A gradient that somebody keeps (an optimiser, for its next step) moves, because parameters are gathered in its
    // memory.
    const bool is_kept = parts_[i].bucket == bucket && gradients[i].defined() && held_elsewhere(gradients[i]) == HeldBy::kTensor;
    if (is_kept) gradients[i].set_data(gradients[i].clone());
  }
}

// Starts to gather a bucket. The optimiser has used the gradients in it.
void Sharded::gather(int64_t bucket) {
  const ProcessGroup& group = setup_.group;
  if (flat(bucket).numel() == 0) return;
  const at::NoGradGuard no_grad;
  for (const ParameterPart& part : parts_) {
    if (part.bucket != bucket || part.count == 0) continue;
    if (!group.is_alone()) part.within(flat(bucket), part.in_bucket).copy_(part.run.tensor);
    if (group.is_alone() && part.has_master()) elements_of(part).copy_(part.run.tensor);
  }
  if (group.is_alone()) return;
  (*slices_)[bucket].gather(group, flat(bucket));
  anything_late_ = true;
}

void Sharded::receive(int64_t bucket) {
  SlicedBucket& slices = (*slices_)[bucket];
  if (!slices.is_gathering()) return;
  const at::NoGradGuard no_grad;
  slices.wait_for_gather(setup_.group, [&] {
    return fmt::format("the parameters of {} after step {}", pipe().describe(bucket), protocol_.steps_finished() - 1);
  });
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> values;
  for (const ParameterPart& part : parts_) {
    if (part.bucket != bucket) continue;
    // Not seen by autograd, like a write of LibTorch 2.13's optimisers. check() finds uses of old values.
    parameters.push_back(part.parameter.variable_data());
    values.push_back(pipe().buckets()->view(part.position));
  }
  at::_foreach_copy_(parameters, values);
  stream_mark().set();
  anything_late_ = slices_->is_any_gathering();
}

void Sharded::receive_all() {
  if (!anything_late_) return;
  for (const int64_t bucket : gather_order()) receive(bucket);
}

void Sharded::receive_those(const std::vector<size_t>& parameters) {
  RECORD_USER_SCOPE("forward waits");
  for (const size_t parameter : parameters) receive(parts_[parameter].bucket);
}

double Sharded::clip_gradients(double max_norm) {
  const auto held = protocol_.enter();
  if (!has_gradients_) return 0;
  stream_mark().follow();
  const at::NoGradGuard no_grad;
  at::Tensor sum;  // read once, because that waits for a device
  for (const ParameterPart& part : parts_) {
    if (!part.run.tensor.grad().defined()) continue;
    const at::Tensor square = part.run.tensor.grad().norm().to(at::kDouble).square();
    sum = sum.defined() ? sum + square.to(sum.device()) : square;
  }
  const double ours = sum.defined() ? sum.item<double>() : 0;
  const WaitPlaces::Call call(protocol_.places(), "clip_gradients()");
  const double norm = std::sqrt(protocol_.or_lose_group([&] { return sum_over_ranks(setup_.control, ours); }));
  constexpr double kEpsilon = 1e-6;  // as in clip_grad_norm_()
  const double factor = max_norm / (norm + kEpsilon);
  if (factor >= 1) return norm;
  for (const ParameterPart& part : parts_) {
    if (part.run.tensor.grad().defined()) part.run.tensor.mutable_grad().mul_(factor);
  }
  stream_mark().set();
  return norm;
}

}  // namespace firkin
