#include "pipe.h"

#include <ATen/ops/any.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Identifies a gradient by its memory, not by its tensor: LibTorch 2.13's Module::zero_grad(false) puts another tensor
// over the same memory in its place.
const void* memory_of(const at::Tensor& gradient) {
  if (!gradient.has_storage()) return gradient.unsafeGetTensorImpl();
  return gradient.storage().unsafeGetStorageImpl();
}

}  // namespace

GradientPipe::GradientPipe(const StepSetup& setup, AdoptedGradients adopted)
    : setup_(setup),
      adopted_(std::move(adopted)),
      ready_order_(setup.initial_order),
      stream_mark_(tensors_of(setup.parameters)),
      communication_(plan_communication(setup.parameters, ready_order_, setup.options)),
      counter_(setup.parameters.size()),
      form_(setup.reduction->form(setup.group)) {
  build_buckets();
  stream_mark_.set();
}

void GradientPipe::build_buckets() {
  flights_.clear();
  buckets_.reset();  // before the new ones: two sets would take twice the memory
  const std::vector<int64_t>& order = communication_.order;
  position_of_.assign(order.size(), 0);
  placed_.assign(order.size(), false);
  std::vector<at::Tensor> tensors;
  for (size_t position = 0; position < order.size(); ++position) {
    const auto parameter = static_cast<size_t>(order[position]);
    position_of_[parameter] = static_cast<int64_t>(position);
    tensors.push_back(setup_.parameters[parameter].tensor);
  }
  buckets_ = std::make_unique<GradientBuckets>(std::move(tensors), communication_.plan, form_.scale,
                                               setup_.options.gradient_hook.wire_dtype, form_.shared_by);
  for (const Bucket& bucket : communication_.plan.buckets) flights_.emplace_back(bucket.count);
  launched_ = flights_.size();
  set_launch_order(communication_.plan.launch_order);
}

int64_t GradientPipe::bucket_at(size_t launch_index) const {
  const std::vector<int64_t>& order = communication_.plan.launch_order;
  return order.empty() ? static_cast<int64_t>(launch_index) : order[launch_index];
}

void GradientPipe::set_launch_order(std::vector<int64_t> order) {
  communication_.plan.launch_order = std::move(order);
  launch_index_.assign(flights_.size(), 0);
  stats_.clear();
  for (size_t i = 0; i < flights_.size(); ++i) {
    const int64_t bucket = bucket_at(i);
    launch_index_[static_cast<size_t>(bucket)] = i;
    stats_.push_back({.tensors = communication_.plan.buckets[static_cast<size_t>(bucket)].count,
                      .bytes = buckets_->gradient_bytes(bucket),
                      .bytes_on_wire = static_cast<int64_t>(buckets_->wire(bucket).nbytes())});
  }
}

void GradientPipe::begin() {
  if (backward_clock_) {
    backward_ = BackwardTimes();
    backward_.began = device_now(*backward_clock_);
    backward_.ready.resize(setup_.parameters.size());
  }
  stream_mark_.follow();
  if (buckets_ == nullptr) {
    build_buckets();
    stream_mark_.set();
  } else if (form_.holds_gradients && buckets_->leave_kept_gradients()) {
    stream_mark_.set();
  }
  placed_.assign(placed_.size(), false);
  own_gradients_.clear();
  counter_.begin_step();
  setup_.reduction->begin(*buckets_);
  launched_ = 0;
  for (BucketFlight& bucket : flights_) bucket.begin(timing_);
  started_at_ = device_now(timing_ ? timing_->device() : c10::kCPU);
}

void GradientPipe::ready(size_t parameter) {
  if (!sends_when_ready()) return;
  switch (counter_.count(parameter)) {
    case ReadyCounter::Arrival::kIncomplete:
      return;
    case ReadyCounter::Arrival::kComplete:
      if (is_placed(parameter)) break;  // it was skipped
      return place_and_launch(parameter);
    case ReadyCounter::Arrival::kTooMany:
      break;
  }
  throw RuntimeError("DataParallel: " + setup_.parameters[parameter].name +
                     " received more gradients than in earlier steps, after its bucket was sent; the next step expects that many");
}

void GradientPipe::skip(size_t parameter) {
  if (sends_when_ready() && !is_placed(parameter)) place_and_launch(parameter);
}

// Places a gradient, then launches, in launch order, the buckets that are full, up to the first that is not.
void GradientPipe::place_and_launch(size_t parameter) {
  const int64_t position = position_of(parameter);
  stream_mark_.follow(setup_.parameters[parameter].tensor.device());
  place(parameter);
  DeviceTime placed_at;
  if (backward_clock_) {
    placed_at = device_now(*backward_clock_);
    backward_.ready[parameter] = {placed_at, backward_.launching.size()};
  }
  const int64_t bucket = buckets_->bucket_of(position);
  flight(bucket).record_placed(buckets_->wire(bucket).device());
  const size_t launched_before = launched_;
  while (launched_ < flights_.size() && flight(bucket_at(launched_)).is_full()) launch_next();
  if (!backward_clock_ || launched_ == launched_before) return;
  backward_.launching.emplace_back(placed_at, device_now(*backward_clock_));
  backward_.launches += static_cast<int64_t>(launched_ - launched_before);
}

void GradientPipe::place(size_t parameter) {
  refuse_sparse_gradient(setup_.parameters[parameter]);
  if (is_programs_own(parameter)) own_gradients_.insert_or_assign(parameter, setup_.parameters[parameter].tensor.grad());
  buckets_->place(position_of(parameter));
  placed_[parameter] = true;
}

// See Note [Gradients that the program holds] in buckets.h. A gradient in these buckets, or in earlier ones, shares its
// memory with others there.
bool GradientPipe::is_programs_own(size_t parameter) const {
  const at::Tensor& gradient = setup_.parameters[parameter].tensor.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided || !form_.holds_gradients) return false;
  const at::Tensor& place = buckets_->view(position_of(parameter));
  if (gradient.is_same(place) || gradient.is_alias_of(place)) return false;
  const HeldBy held = held_elsewhere(gradient);
  return held == HeldBy::kTensor || (held == HeldBy::kMemory && !is_adopted(parameter));
}

void GradientPipe::launch_next() {
  const int64_t bucket = bucket_at(launched_);
  const at::Tensor& wire = buckets_->wire(bucket);
  flight(bucket).join_writers(wire.device());
  buckets_->pack(bucket);
  // See Note [Late collectives in a profile] in flight.h.
  const at::RecordFunctionGuard recorded(at::isRecordFunctionEnabled() && (!may_be_late(bucket) || late_collectives_are_recorded));
  flight(bucket).launch(wire.device(), [&] { return setup_.reduction->start(setup_.group, *buckets_, bucket); });
  ++launched_;
}

std::exception_ptr GradientPipe::finish_reductions(What what) {
  for (const int64_t bucket : not_received()) {
    flight(bucket).wait(setup_.group, what);
    try {
      setup_.reduction->finish(setup_.group, *buckets_, bucket);
    } catch (const std::exception&) {
      return std::current_exception();
    }
  }
  return nullptr;
}

std::exception_ptr GradientPipe::send(Rest rest, What what) {
  backward_ended_ = device_now(timing_ ? timing_->device() : c10::kCPU);
  if (backward_clock_) backward_.ended = device_now(*backward_clock_);
  std::exception_ptr error;
  if (rest == Rest::kZeros) buckets_->fill_with_zeros();
  while (launched_ < flights_.size()) {
    const int64_t bucket = bucket_at(launched_);
    if (rest == Rest::kGradients && !error) {
      try {
        for (const int64_t parameter : parameters_in(bucket)) {
          if (!is_placed(static_cast<size_t>(parameter))) place(static_cast<size_t>(parameter));
        }
      } catch (const std::exception&) {
        error = std::current_exception();
      }
    }
    launch_next();
    if (!sends_when_ready()) flight(bucket).wait(setup_.group, what);
  }
  return error ? error : setup_.reduction->error();
}

void GradientPipe::receive(const std::vector<bool>& wanted, double scale, bool all, What what) {
  wanted_ = wanted;
  scale_ = scale;
  finished_stats_ = stats_;
  for (const int64_t bucket : not_received()) {
    if (!all && may_be_late(bucket)) continue;
    const std::vector<size_t> complete = receive_bucket(bucket, what);
    if (form_.holds_gradients) adopt(complete);
  }
  stream_mark_.set();
  if (sends_when_ready() && counter_.has_learned()) counter_.learn(counter_.counts());
}

void GradientPipe::drop(What what) {
  for (const int64_t bucket : not_received()) {
    flight(bucket).wait(setup_.group, what);
    consume(bucket);
  }
  setup_.reduction->settle(setup_.group);
  own_gradients_.clear();
  stream_mark_.set();
}

// Converts a finished sum to the gradients' dtype and records its times. Afterwards the bucket may be filled again.
void GradientPipe::consume(int64_t bucket) {
  buckets_->unpack(bucket);
  flight(bucket).consume();
  const auto seconds = [this](const DeviceTime& time) { return std::chrono::duration<double>(time.host - started_at_.host).count(); };
  BucketStats& stats = stats_[launch_index_[static_cast<size_t>(bucket)]];
  const BucketTimes times = flight(bucket).times();
  stats.ready_s = seconds(times.ready);
  stats.launch_s = seconds(times.launched);
  stats.end_s = seconds(times.ended);
}

std::vector<size_t> GradientPipe::receive_bucket(int64_t bucket, What what) {
  if (flight(bucket).wait(setup_.group, what)) setup_.reduction->finish(setup_.group, *buckets_, bucket);
  consume(bucket);
  const size_t index = launch_index_[static_cast<size_t>(bucket)];
  finished_stats_[index] = stats_[index];
  if (scale_ != 1) buckets_->scale(bucket, scale_);
  std::vector<size_t> complete;
  for (const int64_t each : parameters_in(bucket)) {
    const auto parameter = static_cast<size_t>(each);
    if (wanted_[parameter]) complete.push_back(parameter);
  }
  return complete;
}

void GradientPipe::adopt(const std::vector<size_t>& parameters) {
  for (const size_t parameter : parameters) {
    const at::Tensor& tensor = setup_.parameters[parameter].tensor;
    if (const auto own = own_gradients_.extract(parameter); !own.empty()) {
      buckets_->adopt_into(own.mapped(), position_of(parameter));
      adopted_.erase(tensor.unsafeGetTensorImpl());
      continue;
    }
    buckets_->adopt(position_of(parameter));
    adopted_[tensor.unsafeGetTensorImpl()] = memory_of(tensor.grad());
  }
}

bool GradientPipe::is_adopted(size_t parameter) const {
  const at::Tensor& tensor = setup_.parameters[parameter].tensor;
  const auto known = adopted_.find(tensor.unsafeGetTensorImpl());
  return known != adopted_.end() && known->second == memory_of(tensor.grad());
}

bool GradientPipe::are_gradients_placeholders() const {
  bool any = false;
  for (size_t i = 0; i < setup_.parameters.size(); ++i) {
    const at::Tensor& gradient = setup_.parameters[i].tensor.grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided || is_adopted(i) || at::any(gradient).item<bool>()) return false;
    any = true;
  }
  return any;
}

std::span<const int64_t> GradientPipe::parameters_in(int64_t bucket) const {
  const Bucket& tensors = communication_.plan.buckets[static_cast<size_t>(bucket)];
  return std::span(communication_.order).subspan(static_cast<size_t>(tensors.first), static_cast<size_t>(tensors.count));
}

std::vector<int64_t> GradientPipe::not_received() const {
  std::vector<int64_t> result;
  for (size_t i = 0; buckets_ != nullptr && i < launched_; ++i) {
    if (!is_received(bucket_at(i))) result.push_back(bucket_at(i));
  }
  return result;
}

void GradientPipe::learn(int root, bool we_had_data) {
  if (!sends_when_ready() || counter_.has_learned()) return;
  std::vector<int64_t> roots_order = list_of_rank(setup_.control, counter_.observed_order(), root);
  const std::vector<int64_t> roots_counts = list_of_rank(setup_.control, counter_.counts(), root);
  counter_.learn(we_had_data ? counter_.counts() : roots_counts);
  if (is_plan_final_ || !form_.holds_gradients || !setup_.options.ready_order.empty() || takes_plan(setup_.options)) return;
  ready_order_ = std::move(roots_order);
  CommunicationPlan communication = plan_communication(setup_.parameters, ready_order_, setup_.options);
  if (communication.order == communication_.order && communication.plan == communication_.plan) return;
  communication_ = std::move(communication);
  buckets_.reset();  // gradients that are still in them keep their memory
}

void GradientPipe::use_plan(CommunicationPlan communication) {
  is_plan_final_ = true;
  ready_order_ = communication.order;
  communication_ = std::move(communication);
  buckets_.reset();
}

std::string GradientPipe::describe(int64_t bucket) const {
  const Bucket& tensors = communication_.plan.buckets[static_cast<size_t>(bucket)];
  const auto first = static_cast<size_t>(communication_.order[static_cast<size_t>(tensors.first)]);
  const std::string more = tensors.count > 1 ? fmt::format(" and {} more", tensors.count - 1) : "";
  return fmt::format("bucket {} ({}{}, {})", bucket, setup_.parameters[first].name, more, format_bytes(buckets_->gradient_bytes(bucket)));
}

std::string GradientPipe::first_pending() const {
  if (buckets_ == nullptr) return "";
  for (size_t i = 0; i < launched_; ++i) {
    if (flight(bucket_at(i)).is_pending()) return describe(bucket_at(i));
  }
  return launched_ == flights_.size() ? "" : describe(bucket_at(launched_));
}

}  // namespace firkin
