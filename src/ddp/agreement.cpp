#include "agreement.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <sstream>

#include "audit.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "module_state.h"

namespace firkin {
namespace {

std::string describe_plan(const std::optional<BucketPlan>& plan) {
  if (!plan) return "none";
  std::vector<int64_t> counts;
  for (const Bucket& bucket : plan->buckets) counts.push_back(bucket.count);
  return fmt::format("buckets of {} tensors, launch order [{}]", fmt::join(counts, ", "), fmt::join(plan->launch_order, ", "));
}

}  // namespace

std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {} [{}] {} strides [{}] on {}", kind, name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.strides(), ", "), c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true));
}

std::vector<std::string> describe(const DataParallelOptions& options, const torch::nn::Module& module) {
  const Strategy& strategy = options.strategy;
  const std::optional<AutomaticBuckets>& automatic = options.buckets;
  std::vector<std::string> lines = {
      fmt::format("strategy {} (grouping {}, launch {}, wait {})", strategy.name, static_cast<int>(strategy.grouping),
                  static_cast<int>(strategy.launch), static_cast<int>(strategy.wait)),
      fmt::format("cap {} bytes", options.cap.cap_bytes),
      fmt::format("cap rule {}", options.cap.rule == CapRule::kAtMost ? "at-most" : "close-when-full"),
      options.cap.first_cap_bytes ? fmt::format("first cap {} bytes", *options.cap.first_cap_bytes) : "first cap none",
      fmt::format("plan {}", describe_plan(options.plan)),
      automatic ? fmt::format("buckets automatic, budget {} s, {} profile steps, trial of {} pairs of {} steps", automatic->budget_s,
                              automatic->profile_steps, automatic->trial_pairs, automatic->trial_steps)
                : "buckets as given",
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
  for (const auto& [name, tensor] : parameters_in(module)) {
    const auto [first, is_new] = first_names.emplace(tensor.unsafeGetTensorImpl(), name);
    const char* kind = tensor.requires_grad() ? "parameter" : "frozen parameter";
    lines.push_back(describe_tensor(kind, name, tensor) + (is_new ? "" : ", the same as " + first->second));
  }
  for (const auto& [name, buffer] : buffers_in(module)) lines.push_back(describe_tensor("buffer", name, buffer));
  return lines;
}

std::string difference_between_ranks(const ProcessGroup& group, const std::vector<std::string>& lines) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  const auto ranks = gather_rows<uint64_t>(group, {hash_of(text)});
  const auto other = std::ranges::find_if(ranks, [&](const auto& rank) { return rank != ranks[0]; });
  if (other == ranks.end()) return "";
  const auto rank = static_cast<int>(other - ranks.begin());
  std::istringstream of_rank_0(text_of_rank(group, text, 0));
  std::istringstream theirs(text_of_rank(group, text, rank));
  std::string a, b;
  while (a == b) {
    if (!std::getline(of_rank_0, a)) a = "nothing more";
    if (!std::getline(theirs, b)) b = "nothing more";
  }
  return fmt::format("DataParallel: the ranks differ: rank 0 has {}; rank {} has {}", a, rank, b);
}

void agree_to_begin(const ProcessGroup& group, const std::optional<std::string>& problem) {
  const std::optional<RankProblem> first = first_problem(group, problem);
  if (problem) throw InputError(*problem);
  if (first) throw RuntimeError(fmt::format("rank {} cannot begin: {}", first->rank, first->text));
}

StepAgreement::StepAgreement(const ProcessGroup& group, size_t parameters)
    : group_(group),
      parameters_(parameters),
      bytes_(at::zeros({static_cast<int64_t>(group.size * sizeof(RankReport) + (parameters + 7) / 8)}, at::kByte)),
      reports_(static_cast<size_t>(group.size)) {}

void StepAgreement::launch(const RankReport& ours, const std::vector<bool>& used) {
  auto* bytes = bytes_.mutable_data_ptr<uint8_t>();
  std::memset(bytes, 0, bytes_.nbytes());
  std::memcpy(bytes + group_.rank * sizeof ours, &ours, sizeof ours);
  uint8_t* bits = bytes + group_.size * sizeof ours;
  for (size_t i = 0; i < parameters_; ++i) {
    if (used[i]) bits[i / 8] |= static_cast<uint8_t>(1U << (i % 8));
  }
  work_ = start_or(group_, bytes_);
}

void StepAgreement::wait(c10::function_ref<std::string()> what) {
  firkin::wait(group_, work_, what);
  work_.reset();
  std::memcpy(reports_.data(), bytes_.const_data_ptr(), reports_.size() * sizeof(RankReport));
  for (size_t rank = 1; rank < reports_.size(); ++rank) {
    if (reports_[rank].identity != reports_[0].identity) {
      throw RuntimeError(fmt::format("rank 0 and rank {} step different modules; expected the same order on every rank", rank));
    }
    const uint64_t of_rank_0 = reports_[0].step;
    const uint64_t theirs = reports_[rank].step;
    if (theirs == of_rank_0) continue;
    throw RuntimeError(fmt::format("the ranks are in different steps: rank 0 in step {}, rank {} in step {}", of_rank_0, rank, theirs));
  }
}

int StepAgreement::ranks_with_data() const {
  return static_cast<int>(std::ranges::count_if(reports_, [](const RankReport& rank) { return rank.state == RankState::kWithData; }));
}

std::string StepAgreement::difference_of_optimizer_steps() const {
  const int first = first_with_data();
  for (int rank = first + 1; rank < group_.size; ++rank) {
    const uint64_t of_first = reports_[static_cast<size_t>(first)].optimizer_steps;
    const uint64_t theirs = reports_[static_cast<size_t>(rank)].optimizer_steps;
    if (has_data(rank) && theirs != of_first) return fmt::format("{} on rank {} and {} on rank {}", of_first, first, theirs, rank);
  }
  return "";
}

bool StepAgreement::is_used(size_t parameter) const {
  if (parameters_ == 0) return true;
  const uint8_t* bits = bytes_.const_data_ptr<uint8_t>() + group_.size * sizeof(RankReport);
  return (bits[parameter / 8] >> (parameter % 8) & 1U) != 0;
}

}  // namespace firkin
