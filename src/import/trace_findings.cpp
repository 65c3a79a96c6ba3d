#include "trace_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <ranges>

#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

constexpr CapOptions kOneCap = {.cap_bytes = kMiB, .rule = CapRule::kCloseWhenFull};

// The plan in which the i-th bucket holds elements[i], or none if gradients do not end there.
std::optional<BucketPlan> plan_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& elements) {
  BucketPlan plan;
  Bucket open;
  size_t next = 0;
  for (const int64_t wanted : elements) {
    int64_t sum = 0;
    for (; next < sizes.size() && sum < wanted; ++next, ++open.count) sum += sizes[next];
    if (sum != wanted || open.count == 0) return std::nullopt;
    plan.buckets.push_back(open);
    open = {.first = open.first + open.count, .count = 0};
  }
  if (next != sizes.size()) return std::nullopt;
  return plan;
}

std::vector<int64_t> elements_of(const TraceSteps& rank) {
  std::vector<int64_t> elements;
  for (const StepReduce& reduce : rank.steps.front().reduces) elements.push_back(reduce.elements);
  return elements;
}

struct PlanCaps {
  CapInterval caps;
  bool is_default = false;
};

// The caps that make the plan: PyTorch's default, one cap for all buckets, or one with a first bucket of 1 MiB.
std::optional<PlanCaps> caps_of(const BucketPlan& plan, const std::vector<int64_t>& bytes) {
  if (assign_buckets(bytes, kTorchDefaultCaps) == plan) {
    return PlanCaps{caps_with_same_buckets(bytes, kTorchDefaultCaps, plan), /*is_default=*/true};
  }
  const std::vector<int64_t> sizes = bucket_bytes(plan, bytes);
  for (CapOptions rule : {kOneCap, kTorchDefaultCaps}) {
    // The smallest bucket that a cap closed; the last one may have been left open.
    const auto closed =
        std::span(sizes).first(sizes.size() > 1 ? sizes.size() - 1 : 1).subspan(rule.first_cap_bytes && sizes.size() > 2 ? 1 : 0);
    rule.cap_bytes = std::max<int64_t>(1, std::ranges::min(closed));
    if (assign_buckets(bytes, rule) == plan) return PlanCaps{caps_with_same_buckets(bytes, rule, plan)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<BucketPlan> plan_of_reduces(const TraceSteps& rank) {
  return plan_of(rank.elements, elements_of(rank));
}

void set_cap(const TraceSteps& rank, const std::optional<BucketPlan>& plan, TracedRun& run) {
  if (run.buckets.size() == 1 || run.buckets.size() == static_cast<size_t>(run.tensors)) return;  // said in a sentence
  std::vector<int64_t> bytes;
  for (const int64_t elements : rank.elements) bytes.push_back(elements * rank.element_bytes);
  std::optional<PlanCaps> made = plan ? caps_of(*plan, bytes) : std::nullopt;
  if (!made || !made->is_default) {
    // Until PyTorch has seen the order of a backward pass, it fills buckets in order of registration, and sends them from
    // the last to the first.
    std::vector<int64_t> backwards = elements_of(rank), registered(rank.elements.rbegin(), rank.elements.rend());
    std::ranges::reverse(backwards);
    std::ranges::reverse(bytes);
    const std::optional<BucketPlan> first_plan = plan_of(registered, backwards);
    const std::optional<PlanCaps> at_first = first_plan ? caps_of(*first_plan, bytes) : std::nullopt;
    if (at_first && (at_first->is_default || !made)) {
      made = at_first;
      run.findings.push_back(
          "The buckets were never rebuilt in the order in which gradients become ready: that is so with find_unused_parameters=True and in "
          "the first step.");
    }
  }
  if (!made) {
    run.findings.push_back("No bucket_cap_mb makes these buckets from the order in which the gradients became ready in this trace.");
    return;
  }
  run.is_default_cap = made->is_default;
  run.cap_bytes = made->is_default ? kTorchDefaultCaps.cap_bytes : roundest_cap(made->caps);
  run.lowest_cap_bytes = made->caps.lowest_cap_bytes;
  if (made->caps.highest_cap_bytes < std::numeric_limits<int64_t>::max()) run.highest_cap_bytes = made->caps.highest_cap_bytes;
}

namespace {

// Whether the all-reduces took time out of backward, in one step, and the rank computed nothing meanwhile.
bool stops_computing(const TraceSteps& rank, const TraceStep& step) {
  constexpr double kLeastShare = 0.05;  // of backward; less tells nothing
  const double end_us = step.backward_us + step.backward_s() * kSecond_us;
  double under_way_us = 0, computing_us = 0;
  for (const StepReduce& reduce : step.reduces) {
    const double from = step.backward_us + reduce.start_s * kSecond_us;
    const double to = std::min(end_us, step.backward_us + reduce.end_s * kSecond_us);
    under_way_us += std::max(0.0, to - from);
    double until = from;
    for (const TraceSpan& span : rank.computing) {
      if (span.start_us >= to) break;
      computing_us += std::max(0.0, std::min(span.end_us, to) - std::max(span.start_us, until));
      until = std::max(until, std::min(span.end_us, to));
    }
  }
  return under_way_us > kLeastShare * (end_us - step.backward_us) && computing_us < kLeastShare * under_way_us;
}

}  // namespace

void add_findings(const TraceSteps& rank, TracedRun& run) {
  const auto add = [&run](std::string sentence) { run.findings.push_back(std::move(sentence)); };
  const TraceStep& step = rank.steps.back();
  const bool is_one = run.buckets.size() == 1, is_each = run.buckets.size() == static_cast<size_t>(run.tensors) && run.tensors > 1;
  // The last gradient's own all-reduce is launched after it even where all overlap.
  const auto late_steps = std::ranges::count_if(rank.steps, [](const TraceStep& each) {
    return std::ranges::all_of(each.reduces, [&](const StepReduce& reduce) { return reduce.launched_s > each.gradients.back().host_s; });
  });
  const bool after_backward = 2 * late_steps > std::ssize(rank.steps);
  if (is_one) add("All gradients travel in one all-reduce, which cannot begin before the last of them is ready.");
  if (is_each) add("Every gradient travels in an all-reduce of its own, each of which pays the latency.");
  if (!is_one && after_backward) {
    add(fmt::format(
        "All of them {} after backward in {} of {} steps, so nothing overlaps there: DistributedDataParallel launches them during it.",
        rank.on_gpu ? "are launched" : "begin", late_steps, rank.steps.size()));
  } else if (!is_one && rank.on_gpu) {
    if (rank.reduces_on_computing_stream) {
      add("The all-reduces run on the stream that computes, so nothing overlaps.");
    } else if (stops_computing(rank, step)) {
      add("Backward stands still while all-reduces run, although they have a stream of their own. CUDA_DEVICE_MAX_CONNECTIONS=1 and "
          "CUDA_LAUNCH_BLOCKING=1 have that effect: see whether the run set one of them.");
    }
  }
  if (!rank.on_gpu) {
    add("On CPUs transport is computation too: these ready times hold what this run's all-reduces slowed down, which a trace under one cap "
        "cannot tell apart. Where the link is fast for the cores, predictions are too uncertain to go by.");
  }
  if (rank.odd_steps > 0) {
    add(fmt::format("{} with other gradients or buckets {} left out.",
                    rank.odd_steps == 1 ? "1 step" : fmt::format("{} steps", rank.odd_steps), rank.odd_steps == 1 ? "is" : "are"));
  }
}

}  // namespace firkin
