#include "bucket_synchronizer.h"

#include <ATen/ops/tensor.h>

#include <numeric>

namespace firkin {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

BucketSynchronizer::BucketSynchronizer(SynchronizerSetup setup_in)
    : StepSynchronizer(std::move(setup_in)),
      ready_order_(setup().ready_order),
      settled_(tensors_of(setup().parameters)),
      counter_(setup().parameters.size()) {
  communication_ = plan_communication(setup().parameters, ready_order_, setup().options);
  build_buckets();
  settled_.set();
  install_hooks();
}

void BucketSynchronizer::build_buckets() {
  launcher_.reset();  // first: two sets of buckets are twice the gradients
  const std::vector<int64_t>& order = communication_.order;
  position_of_.assign(order.size(), 0);
  placed_.assign(order.size(), false);
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  for (size_t position = 0; position < order.size(); ++position) {
    const auto parameter = static_cast<size_t>(order[position]);
    position_of_[parameter] = static_cast<int64_t>(position);
    tensors.push_back(setup().parameters[parameter].tensor);
    names.push_back(setup().parameters[parameter].name);
  }
  auto buckets = std::make_unique<GradientBuckets>(std::move(tensors), communication_.plan, 1.0 / setup().group.size,
                                                   setup().options.gradient_hook.wire_dtype);
  launcher_ = std::make_unique<BucketLauncher>(setup().group, setup().options.gradient_hook, std::move(buckets), std::move(names));
}

void BucketSynchronizer::begin_gradients(int64_t step) {
  settled_.follow();
  if (launcher_ == nullptr) {
    build_buckets();
    settled_.set();
  }
  placed_.assign(placed_.size(), false);
  counter_.begin_step();
  launcher_->begin(step);
}

void BucketSynchronizer::gradient_ready(size_t parameter) {
  if (!sends_when_ready()) return;
  switch (counter_.count(parameter)) {
    case ReadyCounter::Arrival::kIncomplete:
      return;
    case ReadyCounter::Arrival::kComplete:
      settled_.follow(setup().parameters[parameter].tensor.device());
      launcher_->buckets().place(position_of_[parameter]);
      placed_[static_cast<size_t>(position_of_[parameter])] = true;
      gradient_placed(parameter);
      launcher_->tensor_placed(position_of_[parameter]);
      return;
    case ReadyCounter::Arrival::kTooMany:
      throw RuntimeError("DataParallel: " + setup().parameters[parameter].name +
                         " received more gradients than in the steps before, after its bucket was sent; the next step expects as many");
  }
}

bool BucketSynchronizer::has_gradient(size_t parameter) const {
  return (sends_when_ready() && counter_.is_complete(parameter)) || StepSynchronizer::has_gradient(parameter);
}

void BucketSynchronizer::place_bucket(int64_t bucket) {
  const Bucket& tensors = launcher_->buckets().plan().buckets[static_cast<size_t>(bucket)];
  for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
    if (placed_[static_cast<size_t>(position)]) continue;
    launcher_->buckets().place(position);
    placed_[static_cast<size_t>(position)] = true;
  }
}

std::exception_ptr BucketSynchronizer::send_gradients(RankState state) {
  std::exception_ptr error;
  if (state == RankState::kWithoutData) launcher_->buckets().fill_with_zeros();
  while (!launcher_->all_launched()) {
    if (state == RankState::kWithData && !error) {
      try {
        place_bucket(launcher_->next_bucket());
      } catch (const std::exception&) {
        error = std::current_exception();
      }
    }
    launcher_->launch_next();
    if (!sends_when_ready()) launcher_->wait_for_last([this] { return where(); });
  }
  return error;
}

void BucketSynchronizer::receive_gradients(const StepAgreement& agreement) {
  scale_ = static_cast<double>(setup().group.size) / agreement.ranks_with_data();
  used_.resize(position_of_.size());
  for (size_t parameter = 0; parameter < used_.size(); ++parameter) used_[parameter] = agreement.is_used(parameter);
  for (const int64_t bucket : launcher_->not_received()) {
    if (!may_arrive_later(bucket)) adopt(receive(bucket, [this] { return where(); }));
  }
  settled_.set();
  keep_stats();
  if (!sends_when_ready()) return;
  if (!counter_.has_learned()) return learn(agreement.first_with_data(), agreement.has_data(setup().group.rank));
  counter_.learn(counter_.received());
}

void BucketSynchronizer::drop_gradients() {
  for (const int64_t bucket : launcher_->not_received()) launcher_->receive(bucket, [this] { return where(); });
  settled_.set();
}

std::vector<int64_t> BucketSynchronizer::receive(int64_t bucket, c10::function_ref<std::string()> what) {
  const GradientBuckets& buckets = launcher_->buckets();
  launcher_->receive(bucket, what);
  if (scale_ != 1) launcher_->buckets().scale(bucket, scale_);
  std::vector<int64_t> complete;
  const Bucket& tensors = buckets.plan().buckets[static_cast<size_t>(bucket)];
  for (int64_t position = tensors.first; position < tensors.first + tensors.count; ++position) {
    if (!used_[static_cast<size_t>(communication_.order[static_cast<size_t>(position)])]) continue;
    bool is_complete = true;
    for (int64_t part = buckets.bucket_of(position); part <= buckets.last_bucket_of(position); ++part) {
      is_complete = is_complete && launcher_->is_received(part);
    }
    if (is_complete) complete.push_back(position);
  }
  return complete;
}

void BucketSynchronizer::adopt(const std::vector<int64_t>& positions) {
  for (const int64_t position : positions) launcher_->buckets().adopt(position);
}

void BucketSynchronizer::set_launch_order(std::vector<int64_t> order) {
  communication_.plan.launch_order = order;
  launcher_->set_launch_order(std::move(order));
}

// The root's order becomes everybody's; its counts only those of a rank that had no backward of its own.
void BucketSynchronizer::learn(int root, bool we_had_data) {
  at::Tensor roots_order = at::tensor(counter_.observed_order(), at::kLong);
  at::Tensor roots_counts = at::tensor(counter_.received(), at::kLong);
  broadcast(setup().group, {roots_order, roots_counts}, root);
  const auto list = [](const at::Tensor& tensor) {
    const auto* first = tensor.const_data_ptr<int64_t>();
    return std::vector<int64_t>(first, first + tensor.numel());
  };
  counter_.learn(we_had_data ? counter_.received() : list(roots_counts));
  if (is_plan_final_ || !setup().options.ready_order.empty() || takes_plan(setup().options)) return;
  ready_order_ = list(roots_order);
  CommunicationPlan communication = plan_communication(setup().parameters, ready_order_, setup().options);
  if (communication.order == communication_.order && communication.plan == communication_.plan) return;
  communication_ = std::move(communication);
  launcher_.reset();  // its memory is the gradients' until they are gone
}

void BucketSynchronizer::use_plan(CommunicationPlan communication) {
  is_plan_final_ = true;
  ready_order_ = communication.order;
  communication_ = std::move(communication);
  launcher_.reset();
}

DataParallelStats BucketSynchronizer::stats() const {
  const std::lock_guard lock(mutex_);
  DataParallelStats result{.tensors = {}, .buckets = bucket_stats_, .exposed_wait_s = exposed_wait_s(), .steps = steps_finished()};
  for (const int64_t parameter : communication_.order) result.tensors.push_back(setup().parameters[static_cast<size_t>(parameter)].name);
  return result;
}

}  // namespace firkin
