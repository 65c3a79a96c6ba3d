#include "bench/step_trace.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "bench/step_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/plan/launch_order.h"
#include "trace/trace.h"

namespace firkin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, name, activity, thread, start_ns, end_ns, elements)

namespace {

std::vector<Period> steps_in(const std::vector<Span>& spans) {
  std::vector<Period> steps;
  for (const Span& span : spans) {
    if (span.activity == Activity::kPhase && span.name == kStepPhase) steps.push_back({span.start_ns, span.end_ns});
  }
  return steps;
}

std::vector<Span> record_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options,
                               const StepTraceOptions& trace, std::vector<BucketStats>& buckets) {
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  for (int i = 0; i < trace.warmup_steps + steps_to_learn(options); ++i) runner.step(step++);
  TraceRecorder recorder(device_of(workload).type());
  for (int i = 0; i < trace.steps; ++i) {
    if (options.strategy.wait == Wait::kAtStepEnd) barrier(group);
    runner.step(step++);
  }
  runner.drain();  // no collective may be under way when recording stops
  buckets = runner.buckets();
  return recorder.stop();
}

}  // namespace

StepTrace trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options, const StepTraceOptions& trace) {
  if (trace.warmup_steps < 1 || trace.steps < 1) throw InputError("trace: expected at least one step and one warm-up step");
  StepTrace result;
  const std::vector<Span> recorded = record_steps(group, workload, options, trace, result.buckets);
  std::vector<Span> ours;  // without the barriers between steps
  for (const Period& step : steps_in(recorded)) {
    for (const Span& span : spans_between(recorded, step.start_ns, step.end_ns)) ours.push_back(span);
  }
  for (const std::string& text : gather_texts(group, nlohmann::json(ours).dump())) {
    result.ranks.push_back(nlohmann::json::parse(text).get<std::vector<Span>>());
  }
  return result;
}

std::optional<double> idle_though_ready(const std::vector<BucketStats>& buckets) {
  std::vector<double> ready_s;
  std::vector<double> launch_s;
  std::vector<double> end_s;
  for (const BucketStats& bucket : buckets) {
    ready_s.push_back(bucket.ready_s);
    launch_s.push_back(bucket.launch_s);
    end_s.push_back(bucket.end_s);
  }
  const double backward_s = ready_s.empty() ? 0 : *std::ranges::max_element(ready_s);
  if (backward_s <= 0) return std::nullopt;
  return idle_though_ready_s(ready_s, launch_s, end_s, backward_s) / backward_s;
}

std::vector<TracedStep> traced_steps(const std::vector<Span>& spans) {
  std::vector<TracedStep> steps;
  for (const Period& period : steps_in(spans)) {
    steps.push_back({period, overlap_of(spans_cut_to(spans, period.start_ns, period.end_ns))});
  }
  return steps;
}

}  // namespace firkin
