#include "bench/step_trace.h"

#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

#include "bench/step_runner.h"
#include "comm/across_ranks.h"
#include "ddp/flight.h"

namespace firkin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, name, activity, thread, start_ns, end_ns, elements, type, dimensions)

std::vector<std::vector<Span>> trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options,
                                           const StepTraceOptions& trace) {
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  for (int i = 0; i < trace.warmup_steps + steps_to_learn(options); ++i) runner.step(step++);
  late_collectives_are_recorded = true;
  const auto end_of_trace = c10::make_scope_exit([] { late_collectives_are_recorded = false; });
  TraceRecorder recorder(device_of(workload).type());
  for (int i = 0; i < trace.steps; ++i) {
    if (options.strategy.wait == Wait::kAtStepEnd) barrier(group);
    runner.step(step++);
  }
  runner.drain();  // no collective may be in flight when recording stops
  // c10d::Reducer waits for futures, which a collective completes before it ends its record. One more all-reduce ends after
  // all earlier records: over a modelled link surely, over Gloo's two threads most likely.
  all_reduce(group, at::zeros({1}));
  const std::vector<Span> recorded = recorder.stop();
  const auto is_in_a_step = [steps = steps_in(recorded)](const Span& span) {  // and no barrier between steps
    return std::ranges::any_of(steps, [&](const Period& each) { return span.start_ns >= each.start_ns && span.start_ns < each.end_ns; });
  };
  std::vector<Span> ours;
  std::ranges::copy_if(recorded, std::back_inserter(ours), is_in_a_step);
  std::vector<std::vector<Span>> ranks;
  for (const std::string& text : gather_texts(group, nlohmann::json(ours).dump())) {
    ranks.push_back(nlohmann::json::parse(text).get<std::vector<Span>>());
  }
  return ranks;
}

std::vector<Period> steps_in(const std::vector<Span>& spans) {
  std::vector<Period> steps;
  for (const Span& span : spans) {
    if (span.activity == Activity::kPhase && span.name == kStepPhase) steps.push_back({span.start_ns, span.end_ns});
  }
  return steps;
}

TraceFigures figures_of(const std::vector<Span>& spans) {
  TraceFigures figures;
  for (const Period& step : steps_in(spans)) {
    const Overlap overlap = overlap_of(spans_cut_to(spans, step.start_ns, step.end_ns));
    figures.step_s.push_back(seconds_of(step));
    figures.compute_s.push_back(overlap.compute_s);
    figures.communication_s.push_back(overlap.communication_s);
    figures.overlapped_s.push_back(overlap.overlapped_s);
  }
  return figures;
}

namespace {

// When a step computed, communicated, waited in forward and ran the optimiser, in seconds since it began. Gaps too
// short to be seen are closed.
std::vector<BusyPeriod> timeline_of(const std::vector<Span>& spans, const Period& step) {
  constexpr int64_t kGapsPerStep = 500;  // shorter ones are closed
  const int64_t least_gap_ns = (step.end_ns - step.start_ns) / kGapsPerStep;
  const auto since_start = [&step](int64_t time_ns) { return seconds_of({step.start_ns, time_ns}); };
  std::vector<BusyPeriod> timeline;
  const auto add = [&](const std::vector<Span>& of, Activity activity, const char* name) {
    for (const Period& period : busy_periods(of, activity, least_gap_ns)) {
      timeline.push_back({name, since_start(period.start_ns), since_start(period.end_ns)});
    }
  };
  add(spans, Activity::kOperator, "compute");
  add(spans, Activity::kCollective, "communication");
  for (const auto& [phase, name] : {std::pair{kForwardWaitPhase, "forward waits"}, {kOptimizerPhase, "optimiser"}}) {
    std::vector<Span> of_phase;
    std::ranges::copy_if(spans, std::back_inserter(of_phase), [&](const Span& span) { return span.name == phase; });
    add(of_phase, Activity::kPhase, name);
  }
  return timeline;
}

}  // namespace

TraceRow row_of(const std::vector<std::vector<Span>>& ranks, const StepSetting& setting) {
  TraceRow row{.strategy = std::string(setting.options.strategy.name), .name = setting.name, .cap_bytes = setting.cap_bytes, .file = {}};
  for (const auto& rank : ranks) row.ranks.push_back(figures_of(rank));
  const Period step = steps_in(ranks[0]).back();
  row.timeline = timeline_of(spans_cut_to(ranks[0], step.start_ns, step.end_ns), step);
  return row;
}

}  // namespace firkin
