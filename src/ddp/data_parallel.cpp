#include "firkin/ddp/data_parallel.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "bucket_launcher.h"
#include "communication_plan.h"
#include "firkin/base/error.h"
#include "firkin/ddp/gradient_buckets.h"
#include "firkin/ddp/parameter_hooks.h"
#include "module_state.h"
#include "ranks_with_data.h"
#include "torch_reducer.h"

#include <torch/csrc/autograd/engine.h>

namespace firkin {

// One step goes: hooks report gradients (on_gradient), full buckets are launched, finish() launches what is left and waits. The first step
// launches everything in finish(): it shows in which order gradients come, and how many times each is accumulated (a parameter used
// inside and outside a re-entrant backward comes twice), which later steps rely on.
class DataParallel::Impl {
 public:
  Impl(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options);

  void finish();
  bool finish_without_data();
  void abandon_step();

  bool synchronizes = true;  // false inside no_sync()
  bool joining = false;      // true inside a Join scope
  std::vector<int64_t> ready_order;

  DataParallelStats stats() const;
  const BucketPlan& plan() const;
  bool uses_torch() const { return torch_ != nullptr; }

 private:
  void set_ready_order();
  void build_buckets();
  void on_gradient(size_t parameter);
  void begin_step(bool we_have_data);
  void watch_backward();
  bool backward_threw() const { return in_step_ && backward_.expired() && !backward_succeeded_; }
  void launch_rest();
  void launch_one_by_one();
  void end_step(const std::vector<size_t>& without, bool we_have_data);
  std::vector<size_t> parameters_without_gradient() const;
  void adopt_gradients_of_other_ranks(const std::vector<size_t>& without);
  [[noreturn]] void fail_without_gradient(const std::vector<size_t>& without) const;
  void learn_from_first_step(int root, bool we_have_data);

  ProcessGroup group_;
  DataParallelOptions options_;
  std::vector<NamedTensor> parameters_;
  std::vector<at::Tensor> module_buffers_;
  std::shared_ptr<GradientBuckets> buckets_;
  BucketLauncher launcher_;
  RanksWithData with_data_;
  std::unique_ptr<TorchReducer> torch_;  // strategy torch: does the work of all of the below
  std::vector<int64_t> order_;           // position in the buckets -> parameter
  std::vector<int64_t> position_of_;     // parameter -> position in the buckets

  std::mutex mutex_;  // guards what follows: autograd may run hooks on several threads
  bool first_step_ = true;
  bool in_step_ = false;
  std::vector<int64_t> expected_;        // gradients that a parameter gets in one backward
  std::vector<int64_t> received_;        // so far in this step
  std::vector<int64_t> observed_order_;  // parameters by their last gradient, in the first step
  std::weak_ptr<bool> backward_;         // dies with the backward that runs
  bool backward_succeeded_ = false;
  std::vector<BucketStats> bucket_stats_;  // these three: of the last finished step
  double exposed_wait_s_ = 0;
  int64_t steps_ = 0;

  std::unique_ptr<ParameterHooks> hooks_;  // last, so that no hook runs when the rest is gone
};

namespace {

ProcessGroup with_timeout(ProcessGroup group, const DataParallelOptions& options) {
  if (options.timeout) group.timeout = options.timeout;
  return group;
}

}  // namespace

DataParallel::Impl::Impl(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options)
    : group_(with_timeout(std::move(group), options)),
      options_(std::move(options)),
      parameters_(trainable_parameters(module)),
      module_buffers_(module.buffers()),
      launcher_(group_, options_.gradient_hook) {
  if (parameters_.empty()) throw InputError("DataParallel: the module has no trainable parameter");
  check_agreement(group_, parameters_);
  if (options_.broadcast_parameters) {
    broadcast_together(group_, module.parameters(), 0);
    broadcast_together(group_, module_buffers_, 0);
  }
  expected_.assign(parameters_.size(), 1);
  received_.assign(parameters_.size(), 0);
  set_ready_order();
  if (options_.strategy.launch == Launch::kNever) return;
  if (options_.strategy.launch == Launch::kByTorch) {
    torch_ = std::make_unique<TorchReducer>(group_, parameters_, ready_order,
                                            TorchReducerOptions{.cap = options_.cap,
                                                                .gradient_as_bucket_view = options_.torch_bucket_views,
                                                                .find_unused_parameters = options_.find_unused_parameters});
    return;
  }
  build_buckets();
  if (options_.strategy.launch == Launch::kWhenReady) {
    hooks_ = std::make_unique<ParameterHooks>(parameters_, [this](size_t parameter) { on_gradient(parameter); });
  }
}

void DataParallel::Impl::set_ready_order() {
  std::vector<int64_t> registration_order(parameters_.size());
  std::iota(registration_order.begin(), registration_order.end(), 0);
  if (options_.ready_order.empty()) {
    ready_order.assign(registration_order.rbegin(), registration_order.rend());
    return;
  }
  ready_order = options_.ready_order;
  if (std::ranges::is_permutation(ready_order, registration_order)) return;
  throw InputError(fmt::format("DataParallel: ready_order is no permutation of 0..{}", parameters_.size() - 1));
}

void DataParallel::Impl::build_buckets() {
  CommunicationPlan planned = plan_communication(parameters_, ready_order, options_);
  order_ = std::move(planned.order);
  position_of_.assign(order_.size(), 0);
  std::vector<at::Tensor> tensors;
  for (size_t position = 0; position < order_.size(); ++position) {
    const auto parameter = static_cast<size_t>(order_[position]);
    position_of_[parameter] = static_cast<int64_t>(position);
    tensors.push_back(parameters_[parameter].tensor);
  }
  buckets_ = std::make_shared<GradientBuckets>(std::move(tensors), std::move(planned.plan), 1.0 / group_.size);
}

void DataParallel::Impl::begin_step(bool we_have_data) {
  in_step_ = true;
  if (joining) with_data_.announce(group_, we_have_data);
  observed_order_.clear();
  std::ranges::fill(received_, 0);
  launcher_.begin(buckets_);
}

// Learns whether the backward that runs now ends well: autograd drops the callback, and `alive` with it, when backward throws.
void DataParallel::Impl::watch_backward() {
  auto alive = std::make_shared<bool>(true);
  backward_ = alive;
  backward_succeeded_ = false;
  torch::autograd::Engine::get_default_engine().queue_callback([this, alive] { backward_succeeded_ = true; });
}

void DataParallel::Impl::on_gradient(size_t parameter) {
  const std::lock_guard lock(mutex_);
  if (!synchronizes) return;
  if (backward_threw()) abandon_step();
  if (!in_step_) begin_step(/*we_have_data=*/true);
  if (backward_.expired()) watch_backward();
  const int64_t received = ++received_[parameter];
  if (first_step_) {
    if (received > 1) std::erase(observed_order_, static_cast<int64_t>(parameter));
    observed_order_.push_back(static_cast<int64_t>(parameter));
    return;
  }
  if (received > expected_[parameter]) {
    throw RuntimeError(fmt::format(
        "DataParallel: {} received a gradient after its bucket was sent; call finish_gradient_synchronization() after every backward, "
        "or accumulate under no_sync()",
        parameters_[parameter].name));
  }
  if (received < expected_[parameter]) return;
  buckets_->place(position_of_[parameter]);
  launcher_.tensor_placed(position_of_[parameter]);
}

// Places what was not ready and launches what was not launched.
void DataParallel::Impl::launch_rest() {
  for (size_t position = 0; position < order_.size(); ++position) {
    const auto parameter = static_cast<size_t>(order_[position]);
    if (first_step_ || received_[parameter] < expected_[parameter]) buckets_->place(static_cast<int64_t>(position));
  }
  while (!launcher_.all_launched()) launcher_.launch_next();
}

void DataParallel::Impl::launch_one_by_one() {
  while (!launcher_.all_launched()) {
    const Bucket& bucket = buckets_->plan().buckets[static_cast<size_t>(launcher_.next_bucket())];
    for (int64_t i = 0; i < bucket.count; ++i) buckets_->place(bucket.first + i);
    launcher_.launch_next();
    launcher_.wait_for_last();
  }
}

void DataParallel::Impl::finish() {
  const std::lock_guard lock(mutex_);
  if (options_.strategy.launch == Launch::kNever || !synchronizes) return;
  if (torch_ != nullptr) {
    torch_->finish_step();
    if (options_.broadcast_buffers) broadcast_together(group_, module_buffers_, 0);
    ++steps_;
    return;
  }
  if (backward_threw()) {
    abandon_step();
    throw RuntimeError("DataParallel: backward did not finish; its gradients are forgotten");
  }
  if (!in_step_) begin_step(/*we_have_data=*/true);
  const auto wait_started = std::chrono::steady_clock::now();
  const std::vector<size_t> without = parameters_without_gradient();
  if (options_.strategy.launch == Launch::kAfterBackward) {
    launch_one_by_one();
  } else {
    launch_rest();
    launcher_.wait_for_all();
  }
  exposed_wait_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - wait_started).count();
  end_step(without, /*we_have_data=*/true);
  if (!without.empty() && !options_.find_unused_parameters) fail_without_gradient(without);
}

// One step of the ranks that have data, on a rank that has none. False when no rank has.
bool DataParallel::Impl::finish_without_data() {
  const std::lock_guard lock(mutex_);
  if (options_.strategy.launch == Launch::kNever) return false;
  begin_step(/*we_have_data=*/false);
  if (with_data_.count() == 0) {
    in_step_ = false;
    return false;
  }
  buckets_->fill_with_zeros();
  while (!launcher_.all_launched()) launcher_.launch_next();
  launcher_.wait_for_all();
  std::vector<size_t> all(parameters_.size());
  std::iota(all.begin(), all.end(), 0);
  for (const NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  end_step(all, /*we_have_data=*/false);
  return true;
}

// The collectives after the last bucket, the same on every rank. `without`: the parameters that got no gradient here.
void DataParallel::Impl::end_step(const std::vector<size_t>& without, bool we_have_data) {
  in_step_ = false;
  ++steps_;
  bucket_stats_ = launcher_.end();
  const int root = joining ? with_data_.first() : 0;
  if (joining && with_data_.count() < group_.size) buckets_->scale(static_cast<double>(group_.size) / with_data_.count());
  if (options_.find_unused_parameters) {
    adopt_gradients_of_other_ranks(without);
  } else if (!we_have_data) {
    for (const int64_t position : position_of_) buckets_->adopt(position);
  }
  if (options_.broadcast_buffers) broadcast_together(group_, module_buffers_, root);
  if (first_step_ && options_.strategy.launch == Launch::kWhenReady) learn_from_first_step(root, we_have_data);
}

void DataParallel::Impl::abandon_step() {
  if (buckets_ == nullptr) return;
  if (!in_step_) begin_step(/*we_have_data=*/true);
  while (!launcher_.all_launched()) launcher_.launch_next();
  launcher_.wait_for_all();
  in_step_ = false;
}

std::vector<size_t> DataParallel::Impl::parameters_without_gradient() const {
  std::vector<size_t> without;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].tensor.grad().defined()) without.push_back(i);
  }
  return without;
}

// A parameter that some rank used gets the mean gradient on every rank; one that no rank used keeps none, so that optimisers skip it.
void DataParallel::Impl::adopt_gradients_of_other_ranks(const std::vector<size_t>& without) {
  at::Tensor used = at::ones({static_cast<int64_t>(parameters_.size())}, at::kInt);
  for (const size_t parameter : without) used[static_cast<int64_t>(parameter)] = 0;
  all_reduce(group_, used);
  for (const size_t parameter : without) {
    if (used[static_cast<int64_t>(parameter)].item<int>() > 0) buckets_->adopt(position_of_[parameter]);
  }
}

void DataParallel::Impl::fail_without_gradient(const std::vector<size_t>& without) const {
  std::vector<std::string> names;
  for (const size_t parameter : without) names.push_back(parameters_[parameter].name);
  throw RuntimeError(
      fmt::format("DataParallel: rank {} has no gradient for {}; expected every trainable parameter to take part in the loss "
                  "(or set find_unused_parameters)",
                  group_.rank, fmt::join(names, ", ")));
}

// The root's order becomes everybody's; its counts only those of a rank that had no backward of its own.
void DataParallel::Impl::learn_from_first_step(int root, bool we_have_data) {
  first_step_ = false;
  std::vector<int64_t> order = observed_order_;
  for (size_t i = 0; i < received_.size(); ++i) {
    if (received_[i] == 0) order.push_back(static_cast<int64_t>(i));
  }
  at::Tensor roots_order = at::tensor(order, at::kLong);
  at::Tensor roots_counts = at::tensor(received_, at::kLong);
  broadcast(group_, {roots_order, roots_counts}, root);
  const int64_t* counts = we_have_data ? received_.data() : roots_counts.const_data_ptr<int64_t>();
  for (size_t i = 0; i < expected_.size(); ++i) expected_[i] = std::max<int64_t>(counts[i], 1);
  if (!options_.ready_order.empty() || options_.strategy.grouping == Grouping::kPlan) return;
  const int64_t* first = roots_order.const_data_ptr<int64_t>();
  ready_order.assign(first, first + roots_order.numel());
  build_buckets();
}

DataParallelStats DataParallel::Impl::stats() const {
  DataParallelStats result{.tensors = {}, .buckets = {}, .exposed_wait_s = exposed_wait_s_, .steps = steps_};
  for (const int64_t parameter : order_.empty() ? ready_order : order_)
    result.tensors.push_back(parameters_[static_cast<size_t>(parameter)].name);
  if (torch_ != nullptr) {
    for (const int64_t bytes : torch_->bucket_bytes()) result.buckets.push_back({.bytes = bytes, .bytes_on_wire = bytes});
  } else {
    result.buckets = bucket_stats_;
  }
  return result;
}

const BucketPlan& DataParallel::Impl::plan() const {
  static const BucketPlan kNothing;
  return buckets_ == nullptr ? kNothing : buckets_->plan();
}

DataParallel::DataParallel(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options)
    : impl_(std::make_unique<Impl>(module, std::move(group), std::move(options))) {}

DataParallel::~DataParallel() = default;

void DataParallel::finish_gradient_synchronization() {
  impl_->finish();
}

DataParallel::NoSync DataParallel::no_sync() {
  if (impl_->uses_torch()) throw InputError("no_sync(): the strategy torch does not support it");
  return NoSync(impl_->synchronizes);
}

DataParallel::Join::Join(Impl& owner) : owner_(owner) {
  owner_.joining = true;
}

DataParallel::Join::~Join() {
  owner_.joining = false;
}

void DataParallel::Join::finish(const std::function<void()>& step) {
  while (owner_.finish_without_data()) step();
}

DataParallel::Join DataParallel::join() {
  if (impl_->uses_torch()) throw InputError("join(): the strategy torch does not support it");
  return Join(*impl_);
}

void DataParallel::abandon_step() {
  impl_->abandon_step();
}

DataParallelStats DataParallel::stats() const {
  return impl_->stats();
}

const BucketPlan& DataParallel::plan() const {
  return impl_->plan();
}

const std::vector<int64_t>& DataParallel::ready_order() const {
  return impl_->ready_order;
}

}  // namespace firkin
