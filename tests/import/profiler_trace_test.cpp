#include "import/profiler_trace.h"

#include <filesystem>

#include "../plan/helpers.h"
#include "firkin/base/file.h"
#include "trace_text.h"

namespace firkin {
namespace {

TraceSteps steps_in(const std::string& text, const std::optional<GradientSizes>& sizes = {}, const std::string& file = "trace.json") {
  return find_trace_steps(parse_trace_events(text, file).at(0), sizes);
}

ReadTrace read_trace_text(const std::string& text, const std::optional<GradientSizes>& sizes = {}) {
  return combine_traces({steps_in(text, sizes)});
}

MATCHER(IsNearly, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-9;
}

// ---- Ready times.

TEST(ProfilerTrace, OnACpuAGradientIsReadyWhereItsAccumulateGradBegins) {
  const ReadTrace read = read_trace_text(trace_of_steps(3).text());
  EXPECT_THAT(read.profile.names, ElementsAre("gradient 0 (1000)", "gradient 1 (20x10)", "gradient 2 (50)"));
  EXPECT_THAT(read.profile.bytes, ElementsAre(4000, 800, 200));
  EXPECT_THAT(read.profile.ready_s, Pointwise(IsNearly(), {90e-6, 190e-6, 290e-6}));
  EXPECT_EQ(read.run.steps, 3);
  EXPECT_EQ(read.run.world_size, 2);
  EXPECT_EQ(read.run.backend, "gloo");
  ASSERT_EQ(read.run.buckets.size(), 2u);
  EXPECT_EQ(read.run.buckets[0].bytes, 4800);
  EXPECT_EQ(read.run.buckets[0].tensors, 2);
  EXPECT_NEAR(*read.run.buckets[0].ready_s, 190e-6, 1e-9);
  EXPECT_NEAR(read.run.buckets[0].start_s, 200e-6, 1e-9);
  EXPECT_NEAR(read.run.buckets[0].end_s, 410e-6, 1e-9);
  const TracedRank& rank = read.run.ranks.at(0);
  EXPECT_NEAR(rank.step_s, 1e-3, 1e-9);
  EXPECT_NEAR(rank.backward_s, 290e-6, 1e-9);
  EXPECT_NEAR(rank.exposed_s, 120e-6, 1e-9) << "the first all-reduce ends last, at 720 us";
  EXPECT_NEAR(rank.communication_s, 210e-6, 1e-9) << "the second runs within the first";
  EXPECT_TRUE(read.table.empty());
}

TEST(ProfilerTrace, TakesTheMedianOfTheStepsAndTheSlowestRank) {
  TraceText slow = trace_of_steps(2).of_rank(1);
  for (const double start : {2000.0, 3000.0, 4000.0}) add_step(slow, start, 440);
  const ReadTrace read = combine_traces({steps_in(slow.text()), steps_in(trace_of_steps(3).text())});
  EXPECT_THAT(read.profile.ready_s, Pointwise(IsNearly(), {130e-6, 190e-6, 290e-6}));
  EXPECT_EQ(read.run.ranks.at(0).rank, 0) << "in the order of ranks, whatever that of the files";
}

TEST(ProfilerTrace, EventsMayComeInAnyOrderAndTimesWithoutFractions) {
  TraceText trace = trace_of_steps(3);
  std::ranges::reverse(trace.events());
  EXPECT_EQ(read_trace_text(trace.text()).profile.ready_s, read_trace_text(trace_of_steps(3).text()).profile.ready_s);
  std::string seconds = trace.text();
  seconds.replace(seconds.find("\"ms\""), 4, "\"ns\"");  // how a viewer shows times, not what they are
  EXPECT_EQ(read_trace_text(seconds).profile.ready_s, read_trace_text(trace.text()).profile.ready_s);
}

TEST(ProfilerTrace, AnAnnotationOfTheGpuIsNotASecondForward) {
  TraceText trace = trace_of_steps(3);
  for (const double start : {450.0, 1450.0, 2450.0}) trace.add("gpu_user_annotation", "DistributedDataParallel.forward", start, 300);
  EXPECT_NEAR(read_trace_text(trace.text()).run.ranks.at(0).step_s, 1e-3, 1e-9);
}

TEST(ProfilerTrace, WithAccumulationThePassThatSynchronisesCounts) {
  TraceText trace;
  for (const double start : {0.0, 2000.0, 4000.0}) {
    trace.forward(start, 300).node(start + 305);  // under no_sync()
    trace.gradient(start + 350, "1000").gradient(start + 400, "20, 10").gradient(start + 450, "50");
    add_step(trace, start + 1000);
  }
  const ReadTrace read = read_trace_text(trace.text());
  EXPECT_THAT(read.profile.ready_s, Pointwise(IsNearly(), {90e-6, 190e-6, 290e-6}));
  EXPECT_EQ(read.run.steps, 3);
  EXPECT_NEAR(read.run.ranks.at(0).step_s, 2e-3, 1e-9);
}

TEST(ProfilerTrace, OtherCollectivesAreNamedAndAreNoGradients) {
  TraceText trace = trace_of_steps(3);
  trace.gloo(1750, 20, 1).gloo(1800, 20, 53, "int", "broadcast").gloo(2800, 20, 53, "int", "broadcast");
  const ReadTrace read = read_trace_text(trace.text());
  ASSERT_EQ(read.run.others.size(), 2u);
  EXPECT_EQ(read.run.others[0].name, "all_reduce");
  EXPECT_EQ(read.run.others[1].name, "broadcast");
  EXPECT_EQ(read.run.others[1].calls, 2);
  EXPECT_EQ(read.run.buckets.size(), 2u);
}

TEST(ProfilerTrace, LeavesOutAStepWithOtherBuckets) {
  TraceText trace = trace_of_steps(3);
  trace.forward(3000, 300).node(3310).gradient(3400, "1000").gradient(3500, "20, 10").gradient(3600, "50").gloo(3610, 90, 1250);
  const ReadTrace read = read_trace_text(trace.text());
  EXPECT_EQ(read.run.steps, 3);
  EXPECT_THAT(read.run.findings, Contains(HasSubstr("1 step with other gradients or buckets is left out")));
}

TEST(ProfilerTrace, LeavesOutAStepWithAnUnusedParameter) {
  TraceText trace = trace_of_steps(3);
  trace.forward(3000, 300).node(3310).gradient(3400, "1000").gradient(3600, "50").gloo(3610, 90, 1200).gloo(3705, 20, 50);
  const ReadTrace read = read_trace_text(trace.text());
  EXPECT_EQ(read.run.steps, 3);
  EXPECT_THAT(read.run.findings, Contains(HasSubstr("1 step with other gradients or buckets is left out")));
  EXPECT_THAT(read.run.others, IsEmpty());
}

// A step on a GPU: the host is done with backward at 60 us, when the GPU begins with it. Kernels run on stream 7 and end
// at 200, 300 and 400 us; all-reduces on another stream, the first from 305 to 500 us.
TraceText gpu_trace(int steps, const std::string& kernel_name, bool shapes, int stream = 20, TraceSpan last_kernel = {300, 400}) {
  TraceText trace;
  trace.of_rank(0, 2, "nccl");
  for (int i = 0; i < steps; ++i) {
    const double start = 1000.0 * i;
    const int id = 100 * (i + 1);
    trace.forward(start, 20).node(start + 25);
    const auto launch = [&](double at, int correlation) {
      trace.add("cuda_runtime", "cudaLaunchKernel", start + at, 1, fmt::format("\"correlation\": {}", id + correlation), 2);
    };
    const auto kernel = [&](double from, double to, int correlation) {
      trace.add("kernel", "gemm", start + from, to - from, fmt::format("\"correlation\": {}, \"stream\": 7", id + correlation), 7);
    };
    const auto reduce = [&](double from, double to, int correlation, int elements) {
      const std::string args = fmt::format(R"("correlation": {}, "stream": {}, "Collective name": "allreduce", "In msg nelems": {}, )"
                                           R"("dtype": "Float", "Group size": 2, "Process Group Name": "0")",
                                           id + correlation, stream, elements);
      trace.add("kernel", kernel_name, start + from, to - from, args, stream);
    };
    const auto gradient = [&](double at, const char* dimensions) {
      trace.add("cpu_op", "torch::autograd::AccumulateGrad", start + at, 1,
                shapes ? TraceText::shape(fmt::format("[{}]", dimensions), "float") : "", 2);
    };
    launch(30, 1), kernel(100, 200, 1);
    gradient(32, "1000");
    launch(34, 2), kernel(200, 300, 2);
    gradient(36, "200");
    launch(37, 3), reduce(305, 500, 3, 1200);
    launch(40, 4), kernel(last_kernel.start_us, last_kernel.end_us, 4);
    gradient(42, "50");
    launch(43, 5), reduce(650, 700, 5, 50);
  }
  return trace;
}

constexpr const char* kNcclKernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";

TEST(ProfilerTrace, OnAGpuAGradientIsReadyWhenTheLastKernelLaunchedBeforeItEnds) {
  for (const char* name : {kNcclKernel, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
                           "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "rcclKernel_AllReduce(int)"}) {
    const ReadTrace read = read_trace_text(gpu_trace(3, name, /*shapes=*/true).text());
    EXPECT_THAT(read.profile.ready_s, Pointwise(IsNearly(), {100e-6, 200e-6, 300e-6})) << name;
    EXPECT_NEAR(read.run.ranks.at(0).exposed_s, 300e-6, 1e-9);
    EXPECT_NEAR(read.run.buckets.at(1).start_s, 550e-6, 1e-9);
    EXPECT_EQ(read.run.backend, "nccl");
    EXPECT_THAT(read.run.findings, Not(Contains(HasSubstr("stands still"))));
  }
}

TEST(ProfilerTrace, SaysWhyNothingOverlapsOnAGpu) {
  const ReadTrace same = read_trace_text(gpu_trace(3, kNcclKernel, true, /*stream=*/7).text());
  EXPECT_THAT(same.run.findings, Contains("The all-reduces run on the stream that computes, so nothing overlaps."));
  const auto stands_still = Contains(HasSubstr("stands still while all-reduces run"));
  const ReadTrace waits = read_trace_text(gpu_trace(3, kNcclKernel, true, 20, {505, 605}).text());
  EXPECT_THAT(waits.run.findings, stands_still);
  const ReadTrace ends = read_trace_text(gpu_trace(3, kNcclKernel, true, 20, {300, 304}).text());
  EXPECT_THAT(ends.run.findings, Not(stands_still)) << "nothing was left to compute";
}

TEST(ProfilerTrace, TakesSizesThatTheTraceDoesNotSayIfItsAllReducesConfirmThem) {
  const std::string text = gpu_trace(3, kNcclKernel, /*shapes=*/false).text();
  const GradientSizes sizes{"--model m", {"head", "body", "foot"}, {1000, 200, 50}};
  const ReadTrace read = read_trace_text(text, sizes);
  EXPECT_EQ(read.profile.names, sizes.names);
  EXPECT_THAT(read.profile.bytes, ElementsAre(4000, 800, 200));
  EXPECT_THAT(read_trace_text(text, GradientSizes{"--tensors t", sizes.names, {4000, 800, 200}, /*are_bytes=*/true}).profile.bytes,
              ElementsAre(4000, 800, 200));
  EXPECT_THAT(error_of([&] { read_trace_text(text); }),
              "trace.json: the sizes of gradients were not recorded; expected torch.profiler.profile(record_shapes=True), or --model or "
              "--tensors, which say them");
  EXPECT_THAT(error_of([&] {
                read_trace_text(text, GradientSizes{"--model m", {"a", "b"}, {1000, 250}});
              }),
              "trace.json: 3 gradients a pass; expected the 2 of --model m");
  EXPECT_THAT(error_of([&] {
                read_trace_text(text, GradientSizes{"--model m", sizes.names, {1000, 50, 200}});
              }),
              HasSubstr("all-reduces of 1200, 50 elements, which do not end where gradients of --model m do"));
  EXPECT_THAT(error_of([&] {
                read_trace_text(text, GradientSizes{"--model m", sizes.names, {1000, 200, 51}});
              }),
              HasSubstr("the gradients of a step have 1251 elements, its all-reduces 1200, 50"));
}

// ---- What the run did.

TEST(ProfilerTrace, SaysWhichCapMakesTheBuckets) {
  const ReadTrace read = read_trace_text(trace_of_steps(3).text());  // 4800 bytes, then 200
  ASSERT_TRUE(read.run.cap_bytes);
  EXPECT_FALSE(read.run.is_default_cap);
  EXPECT_EQ(read.run.lowest_cap_bytes, 4001);
  EXPECT_EQ(read.run.highest_cap_bytes, 4800);
}

TEST(ProfilerTrace, SaysHowGradientsTravelOtherThanInBuckets) {
  TraceText each, one;
  for (const double start : {0.0, 1000.0, 2000.0}) {
    for (TraceText* trace : {&each, &one}) {
      trace->add("user_annotation", "Optimizer.step#SGD.step", start, 20).node(start + 310);
      trace->gradient(start + 400, "1000").gradient(start + 500, "20, 10").gradient(start + 600, "50");
    }
    each.gloo(start + 610, 20, 1000).gloo(start + 640, 20, 200).gloo(start + 670, 20, 50);
    one.gloo(start + 610, 20, 1250);
  }
  EXPECT_THAT(read_trace_text(each.text()).run.findings,
              IsSupersetOf({HasSubstr("an all-reduce of its own"), HasSubstr("begin after backward in 3 of 3 steps")}));
  EXPECT_THAT(read_trace_text(one.text()).run.findings, Contains(HasSubstr("All gradients travel in one all-reduce")));
}

TEST(ProfilerTrace, SaysThatBucketsWereNeverRebuilt) {
  TraceText trace;  // ready order: 2, 3 and 1 Mi elements; registered the other way round, the first bucket is the last sent
  for (const double start : {0.0, 1000.0, 2000.0}) {
    trace.forward(start, 300).node(start + 310);
    trace.gradient(start + 400, "2097152").gradient(start + 500, "3145728").gradient(start + 600, "1048576");
    trace.gloo(start + 510, 210, 5242880).gloo(start + 610, 90, 1048576);
  }
  const ReadTrace read = read_trace_text(trace.text());
  EXPECT_THAT(read.run.findings, Contains(HasSubstr("never rebuilt")));
  EXPECT_TRUE(read.run.is_default_cap);
}

// ---- All-reduce times.

// Rank 0 joins the first of three all-reduces late, rank 1 the others; none overlaps another.
TraceText apart(int rank) {
  TraceText trace;
  trace.of_rank(rank);
  for (const double start : {0.0, 2000.0, 4000.0}) {
    trace.forward(start, 300).node(start + 310);
    trace.gradient(start + 400, "10000").gradient(start + 800, "2000").gradient(start + 1100, "500");
    trace.gloo(start + (rank == 0 ? 450 : 410), rank == 0 ? 300 : 340, 10000);
    trace.gloo(start + (rank == 0 ? 810 : 860), rank == 0 ? 150 : 100, 2000);
    trace.gloo(start + (rank == 0 ? 1110 : 1120), rank == 0 ? 60 : 50, 500);
  }
  return trace;
}

TEST(ProfilerTrace, AnAllReduceTakesAsLongAsForTheLastRankToJoin) {
  const ReadTrace read = combine_traces({steps_in(apart(0).text()), steps_in(apart(1).text())});
  ASSERT_EQ(read.table.size(), 3u);
  EXPECT_EQ(read.table[0].bytes, 2000);
  EXPECT_EQ(read.table[0].world_size, 2);
  EXPECT_NEAR(read.table[0].median_s, 50e-6, 1e-9);
  EXPECT_NEAR(read.table[1].median_s, 100e-6, 1e-9);
  EXPECT_NEAR(read.table[2].median_s, 300e-6, 1e-9);
  EXPECT_NEAR(*read.run.ranks.at(0).waiting_s, 60e-6, 1e-9);
  EXPECT_NEAR(*read.run.ranks.at(1).waiting_s, 40e-6, 1e-9);
}

TEST(ProfilerTrace, HasNoTableIfOneRankIsMissingOrTwoAllReducesOverlap) {
  EXPECT_THAT(read_trace_text(apart(0).text()).why_no_table, HasSubstr("all 2 ranks' traces together can show it"));
  const ReadTrace read = combine_traces({steps_in(trace_of_steps(3).text()), steps_in(trace_of_steps(3).of_rank(1).text())});
  EXPECT_TRUE(read.table.empty());
  EXPECT_THAT(read.why_no_table, HasSubstr("none of them runs alone"));
}

TEST(ProfilerTrace, DoubtsATableThatIsTwiceAsFastAsTheRun) {
  const TracedRun run = read_trace_text(trace_of_steps(3).text()).run;  // 210 us for 4800 and 200 bytes
  const auto table = [](double seconds) { return comm_costs({{.bytes = 4800, .world_size = 2, .median_s = seconds}}, 2); };
  EXPECT_THAT(doubt_of_rate(run, table(40e-6)), HasSubstr("times as fast as what the run saw: its all-reduces took 210 us"));
  EXPECT_EQ(doubt_of_rate(run, table(110e-6)), "");
}

// ---- Bad input: one line each.

struct Bad {
  const char* name;
  std::string text, problem;
};

TraceText with_type(const std::string& gradient, const std::string& reduce) {
  TraceText trace;
  for (const double start : {0.0, 1000.0}) {
    trace.forward(start, 300).node(start + 310).gradient(start + 400, "1000", gradient).gloo(start + 410, 90, 1000, reduce);
  }
  return trace;
}

// Two wrapped models whose passes take turns.
TraceText two_models() {
  TraceText trace;
  for (const double start : {0.0, 1000.0, 2000.0, 3000.0}) {
    const bool is_first = start < 1000 || start == 2000;
    trace.forward(start, 300).node(start + 310).gradient(start + 400, is_first ? "1000" : "30").gloo(start + 410, 90, is_first ? 1000 : 30);
  }
  return trace;
}

TEST(ProfilerTrace, IsRefusedInOneLine) {
  const std::string whole = trace_of_steps(3).text();
  const Bad traces[] = {
      {"empty", "", "trace.json:1: the file is empty"},
      {"cut off", whole.substr(0, whole.size() / 2), "the trace is cut off"},
      {"cut off at the end", whole.substr(0, whole.size() - 3), "the trace is cut off"},
      {"no JSON", "{\"traceEvents\": [nothing]}", "trace.json:1: not JSON"},
      {"huge number", "{\"traceEvents\": [\n{\"ts\": 1e999}]}", "trace.json:2: a number is too large"},
      {"no events", "{\"traceEvents\": []}", "no events"},
      {"other JSON", "{\"a\": {\"b\": 1}}", "no events"},
      {"other program", R"({"traceEvents": [{"ph": "X", "cat": "toplevel", "name": "Run", "ts": 1, "dur": 2}]})", "no backward pass"},
      {"no all-reduces", TraceText().forward(0, 300).node(310).gradient(400, "10").text(), "no all-reduce"},
      {"two models", two_models().text(), "steps with gradients of 30 elements, and others with 1000"},
      {"rank above world", trace_of_steps(3).of_rank(5).text(), "rank 5 of 2"},
      {"one step", trace_of_steps(1).text(), "one step"},
      {"two types", TraceText().forward(0, 9).gradient(40, "10").gradient(50, "5", "double").gloo(60, 9, 15).text(),
       "gradients of two types"},
      {"compression hook", with_type("float", "c10::Half").text(), "gradients of type float travel as c10::Half"},
      {"whole numbers", with_type("long int", "long int").text(), "gradients of type long int"},
  };
  for (const auto& [name, text, problem] : traces) {
    EXPECT_THAT(error_of([&, &text = text] { read_trace_text(text); }),
                AllOf(StartsWith("trace.json:"), HasSubstr(problem), HasSubstr("; expected "), Not(HasSubstr("\n"))))
        << name;
  }
}

TEST(ProfilerTrace, RefusesSizesThatContradictItsShapes) {
  const std::string text = trace_of_steps(3).text();
  const GradientSizes own{.source = "--tensors", .names = {"a", "b", "c"}, .sizes = {50, 200, 1000}};
  EXPECT_EQ(read_trace_text(text, own).profile.bytes, read_trace_text(text).profile.bytes);
  const GradientSizes others{.source = "--model gpt2", .names = {"a", "b", "c"}, .sizes = {50, 200, 1001}};
  EXPECT_THAT(error_of([&] { read_trace_text(text, others); }), HasSubstr("recorded shapes are not those of --model gpt2"));
}

TEST(ProfilerTrace, SaysAfterBackwardOnlyIfMostStepsShowIt) {
  TraceText trace = trace_of_steps(3);
  trace.forward(3000, 300).node(3310).gradient(3400, "1000").gradient(3500, "20, 10").gradient(3600, "50");
  trace.gloo(3620, 210, 1200).gloo(3640, 90, 50);  // the last step alone
  EXPECT_THAT(read_trace_text(trace.text()).run.findings, Not(Contains(HasSubstr("after backward"))));
}

TEST(ProfilerTrace, RefusesTracesOfDifferentRuns) {
  const auto error = [](const std::string& other) {
    return error_of([&] { combine_traces({steps_in(trace_of_steps(3).text()), steps_in(other, {}, "other.json")}); });
  };
  TraceText trace = trace_of_steps(3);
  EXPECT_THAT(error(trace.text()), "other.json: rank 0, as in another trace; expected traces of different ranks of one run");
  EXPECT_THAT(error(trace.of_rank(1, 4).text()), HasSubstr("other.json: 4 ranks, in trace.json 2"));
  trace.of_rank(1).head += R"(, "baseTimeNanoseconds": 1780000000000000000)";
  EXPECT_THAT(error(trace.text()), HasSubstr("recorded at another time"));
  EXPECT_THAT(error(with_type("float", "float").of_rank(1).text()), HasSubstr("other gradients than in trace.json"));
}

}  // namespace
}  // namespace firkin
