#include "bench/step_trace.h"

#include <nlohmann/json.hpp>

#include "bench/step_runner.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "trace/recorder.h"

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
                               const StepTraceOptions& trace) {
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  for (int i = 0; i < trace.warmup_steps + steps_to_learn(options.strategy); ++i) runner.step(step++);
  TraceRecorder recorder(device_of(workload).type());
  for (int i = 0; i < trace.steps; ++i) {
    if (options.strategy.wait == Wait::kAtStepEnd) barrier(group);
    runner.step(step++);
  }
  runner.drain();  // no collective may be under way when recording stops
  return recorder.stop();
}

}  // namespace

std::vector<std::vector<Span>> trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options,
                                           const StepTraceOptions& trace) {
  if (trace.warmup_steps < 1 || trace.steps < 1) throw InputError("trace: expected at least one step and one warm-up step");
  const std::vector<Span> recorded = record_steps(group, workload, options, trace);
  std::vector<Span> ours;  // without the barriers between steps
  for (const Period& step : steps_in(recorded)) {
    for (const Span& span : spans_between(recorded, step.start_ns, step.end_ns)) ours.push_back(span);
  }
  std::vector<std::vector<Span>> by_rank;
  for (const std::string& text : gather_texts(group, nlohmann::json(ours).dump())) {
    by_rank.push_back(nlohmann::json::parse(text).get<std::vector<Span>>());
  }
  return by_rank;
}

std::vector<TracedStep> traced_steps(const std::vector<Span>& spans) {
  std::vector<TracedStep> steps;
  for (const Period& period : steps_in(spans)) {
    steps.push_back({period, overlap_of(spans_cut_to(spans, period.start_ns, period.end_ns))});
  }
  return steps;
}

}  // namespace firkin
