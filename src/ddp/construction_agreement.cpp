#include "construction_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <sstream>

#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "text_hash.h"

namespace firkin {
namespace {

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

std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {} [{}] {} strides [{}] on {}", kind, name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.strides(), ", "), c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true));
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
      fmt::format("torch_bucket_views {}", options.torch_bucket_views),
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

void agree_at_construction(const ProcessGroup& group, const std::vector<std::string>& lines, const std::string& problem) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  const uint64_t hash = hash_of(text);
  // The hash as two halves, because a double holds 53 bits.
  const auto ranks =
      all_gather(group, {problem.empty() ? 0.0 : 1.0, static_cast<double>(hash >> 32), static_cast<double>(hash & 0xffffffff)});
  for (int rank = 0; rank < group.size; ++rank) {
    if (ranks[static_cast<size_t>(rank)][0] == 0) continue;
    const std::string reason = text_of_rank(group, problem, rank);
    if (!problem.empty()) throw InputError(problem);
    throw RuntimeError(fmt::format("rank {} cannot begin: {}", rank, reason));
  }
  for (int rank = 1; rank < group.size; ++rank) {
    if (ranks[static_cast<size_t>(rank)] == ranks[0]) continue;
    const std::string of_rank_0 = text_of_rank(group, text, 0);
    const std::string theirs = text_of_rank(group, text, rank);
    throw RuntimeError(first_difference(of_rank_0, theirs, rank));
  }
}

}  // namespace firkin
