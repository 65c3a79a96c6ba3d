#include "agreement.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

// A slot's step_and_state: step * 8 + 4 where parameters have changed + state.
constexpr uint64_t kStates = 4;
constexpr uint64_t kChanged = 4;
constexpr uint64_t kStep = 8;

std::string describe_plan(const std::optional<BucketPlan>& plan) {
  if (!plan) return "none";
  std::vector<std::string> counts;
  for (const Bucket& bucket : plan->buckets) {
    counts.push_back(bucket.parts == 1 ? fmt::to_string(bucket.count) : fmt::format("1/{}", bucket.parts));
  }
  return fmt::format("buckets of {} tensors, launch order [{}]", fmt::join(counts, ", "), fmt::join(plan->launch_order, ", "));
}

std::string describe_automatic(const std::optional<AutomaticBuckets>& buckets) {
  if (!buckets) return "as given";
  return fmt::format("automatic, budget {} s, {} profile steps, trial of {} pairs of {} steps", buckets->budget_s, buckets->profile_steps,
                     buckets->trial_pairs, buckets->trial_steps);
}

std::string first_difference(const std::string& of_rank_0, const std::string& theirs, int their_rank) {
  std::istringstream a_lines(of_rank_0);
  std::istringstream b_lines(theirs);
  std::string a;
  std::string b;
  while (a == b) {
    if (!std::getline(a_lines, a)) a = "nothing more";
    if (!std::getline(b_lines, b)) b = "nothing more";
  }
  return fmt::format("DataParallel: the ranks differ: rank 0 has {}; rank {} has {}", a, their_rank, b);
}

}  // namespace

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {} [{}] {} strides [{}] on {}", kind, name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.strides(), ", "), c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true));
}

std::vector<std::string> describe(const DataParallelOptions& options, const torch::nn::Module& module) {
  const Strategy& strategy = options.strategy;
  std::vector<std::string> lines = {
      fmt::format("strategy {} (grouping {}, launch {}, wait {})", strategy.name, static_cast<int>(strategy.grouping),
                  static_cast<int>(strategy.launch), static_cast<int>(strategy.wait)),
      fmt::format("cap {} bytes", options.cap.cap_bytes),
      fmt::format("cap rule {}", options.cap.rule == CapRule::kAtMost ? "at-most" : "close-when-full"),
      options.cap.first_cap_bytes ? fmt::format("first cap {} bytes", *options.cap.first_cap_bytes) : "first cap none",
      fmt::format("plan {}", describe_plan(options.plan)),
      fmt::format("buckets {}", describe_automatic(options.buckets)),
      fmt::format("ready order [{}]", fmt::join(options.ready_order, ", ")),
      fmt::format("gradient hook {}, on the wire {}", options.gradient_hook.name,
                  options.gradient_hook.wire_dtype ? c10::toString(*options.gradient_hook.wire_dtype) : "as it is"),
      fmt::format("finish_with_backward {}", options.finish_with_backward),
      fmt::format("find_unused_parameters {}", options.find_unused_parameters),
      fmt::format("broadcast_buffers {}", options.broadcast_buffers),
      fmt::format("broadcast_parameters {}", options.broadcast_parameters),
      fmt::format("audit_every {}", options.audit_every),
      fmt::format("name {}", options.name),
  };
  std::map<const void*, std::string> first_names;  // weights may be tied
  for (const auto& parameter : module.named_parameters()) {
    const auto [first, is_new] = first_names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
    const char* kind = parameter.value().requires_grad() ? "parameter" : "frozen parameter";
    lines.push_back(describe_tensor(kind, parameter.key(), parameter.value()) + (is_new ? "" : ", the same as " + first->second));
  }
  for (const auto& buffer : module.named_buffers()) lines.push_back(describe_tensor("buffer", buffer.key(), buffer.value()));
  return lines;
}

std::string difference_between_ranks(const ProcessGroup& group, const std::vector<std::string>& lines) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  const auto ranks = gather_hashes(group, {hash_of(text)});
  const auto other = std::ranges::find_if(ranks, [&](const auto& rank) { return rank != ranks[0]; });
  if (other == ranks.end()) return "";
  const auto rank = static_cast<int>(other - ranks.begin());
  const std::string of_rank_0 = text_of_rank(group, text, 0);
  const std::string theirs = text_of_rank(group, text, rank);
  return first_difference(of_rank_0, theirs, rank);
}

void agree_to_begin(const ProcessGroup& group, const std::string& problem) {
  const auto ranks = all_gather(group, {problem.empty() ? 0.0 : 1.0});
  const auto failed = std::ranges::find_if(ranks, [](const auto& rank) { return rank[0] != 0; });
  if (failed == ranks.end()) return;
  const auto rank = static_cast<int>(failed - ranks.begin());
  const std::string reason = text_of_rank(group, problem, rank);
  if (!problem.empty()) throw InputError(problem);
  throw RuntimeError(fmt::format("rank {} cannot begin: {}", rank, reason));
}

StepAgreement::StepAgreement(const ProcessGroup& group, uint64_t identity, size_t parameters)
    : group_(group),
      identity_(identity),
      parameters_(parameters),
      bytes_(at::zeros({static_cast<int64_t>(group_.size * sizeof(Slot) + (parameters + 7) / 8)}, at::kByte)) {}

void StepAgreement::launch(const RankReport& ours, const std::vector<bool>& used) {
  auto* bytes = bytes_.mutable_data_ptr<uint8_t>();
  std::memset(bytes, 0, bytes_.nbytes());
  const Slot slot{.step_and_state = ours.step * kStep + (ours.parameters_changed ? kChanged : 0) + static_cast<uint64_t>(ours.state),
                  .identity = identity_,
                  .checksum = ours.checksum};
  std::memcpy(bytes + group_.rank * sizeof(Slot), &slot, sizeof slot);
  uint8_t* bits = bytes + group_.size * sizeof(Slot);
  for (size_t i = 0; i < parameters_; ++i) {
    if (used[i]) bits[i / 8] |= static_cast<uint8_t>(1U << (i % 8));
  }
  work_ = start_or(group_, bytes_);
}

StepAgreement::Slot StepAgreement::slot_of(int rank) const {
  Slot slot;
  std::memcpy(&slot, bytes_.const_data_ptr<uint8_t>() + rank * sizeof slot, sizeof slot);
  return slot;
}

RankReport StepAgreement::report_of(int rank) const {
  const Slot slot = slot_of(rank);
  return {.step = slot.step_and_state / kStep,
          .state = static_cast<RankState>(slot.step_and_state % kStates),
          .parameters_changed = (slot.step_and_state & kChanged) != 0,
          .checksum = slot.checksum};
}

void StepAgreement::wait(c10::function_ref<std::string()> what) {
  firkin::wait(group_, work_, what);
  work_.reset();
  for (int rank = 1; rank < group_.size; ++rank) {
    if (slot_of(rank).identity != slot_of(0).identity) {
      throw RuntimeError(fmt::format("rank 0 and rank {} step different modules; expected the same order on every rank", rank));
    }
    if (report_of(rank).step == report_of(0).step) continue;
    throw RuntimeError(fmt::format("the ranks are in different steps: rank 0 in step {}, rank {} in step {}", report_of(0).step, rank,
                                   report_of(rank).step));
  }
}

int StepAgreement::ranks_with_data() const {
  int count = 0;
  for (int rank = 0; rank < group_.size; ++rank) count += has_data(rank) ? 1 : 0;
  return count;
}

int StepAgreement::first_in(RankState state) const {
  int rank = 0;
  while (rank < group_.size && report_of(rank).state != state) ++rank;
  return rank;
}

int StepAgreement::first_with_data() const {
  return first_in(RankState::kWithData);
}

int StepAgreement::first_failed() const {
  return first_in(RankState::kFailed);
}

bool StepAgreement::any_parameters_changed() const {
  bool any = false;
  for (int rank = 0; rank < group_.size; ++rank) any = any || report_of(rank).parameters_changed;
  return any;
}

bool StepAgreement::are_checksums_equal() const {
  bool equal = true;
  for (int rank = 1; rank < group_.size; ++rank) equal = equal && report_of(rank).checksum == report_of(0).checksum;
  return equal;
}

bool StepAgreement::is_used(size_t parameter) const {
  if (parameters_ == 0) return true;
  const uint8_t* bits = bytes_.const_data_ptr<uint8_t>() + group_.size * sizeof(Slot);
  return (bits[parameter / 8] >> (parameter % 8) & 1U) != 0;
}

std::string StepAgreement::exchange_reason(const std::string& ours, int root) const {
  constexpr int64_t kLongest = 1000;
  at::Tensor text = at::zeros({kLongest + 1}, at::kByte);
  if (group_.rank == root) std::memcpy(text.mutable_data_ptr(), ours.data(), std::min<size_t>(ours.size(), kLongest));
  broadcast(group_, {text}, root);
  return static_cast<const char*>(text.const_data_ptr());
}

}  // namespace firkin
