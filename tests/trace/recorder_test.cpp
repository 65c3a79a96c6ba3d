#include "trace/trace.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <torch/torch.h>

namespace firkin {
namespace {

const Span* find(const std::vector<Span>& spans, const std::string& name) {
  const auto found = std::ranges::find(spans, name, &Span::name);
  return found == spans.end() ? nullptr : &*found;
}

TEST(TraceRecorder, SeesOperatorsOfForwardAndBackwardInTheirPhases) {
  const torch::Tensor weight = torch::ones({16, 16}, torch::requires_grad());
  TraceRecorder recorder;
  {
    RECORD_USER_SCOPE("whole");
    torch::ones({4, 16}).mm(weight).sum().backward();
  }
  const std::vector<Span> spans = recorder.stop();
  const Span* whole = find(spans, "whole");
  const Span* forward = find(spans, "aten::mm");
  const Span* backward = find(spans, "MmBackward0");
  ASSERT_TRUE(whole != nullptr && forward != nullptr && backward != nullptr);
  EXPECT_EQ(whole->activity, Activity::kPhase);
  EXPECT_EQ(forward->activity, Activity::kOperator);
  EXPECT_EQ(backward->activity, Activity::kOperator);
  EXPECT_LE(whole->start_ns, forward->start_ns);
  EXPECT_LE(forward->end_ns, backward->start_ns);
  EXPECT_LE(backward->end_ns, whole->end_ns);
  EXPECT_EQ(whole->thread, forward->thread);
  EXPECT_TRUE(std::ranges::is_sorted(spans, {}, &Span::start_ns));
}

TEST(TraceRecorder, SaysWhenInUnixTime) {
  const auto now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const int64_t before_ns = now_ns();
  TraceRecorder recorder;
  torch::ones({2}).add(1);
  const std::vector<Span> spans = recorder.stop();
  ASSERT_FALSE(spans.empty());
  constexpr int64_t kMillisecond = 1'000'000;  // the profiler converts from the processor's counter
  EXPECT_GE(spans.front().start_ns, before_ns - kMillisecond);
  EXPECT_LE(spans.back().end_ns, now_ns() + kMillisecond);
}

TEST(TraceRecorder, RecordsOnceMoreAfterOneThatWasDropped) {
  { const TraceRecorder dropped; }
  TraceRecorder recorder;
  torch::ones({2}).add(1);
  EXPECT_NE(find(recorder.stop(), "aten::add"), nullptr);
}

}  // namespace
}  // namespace firkin
