// One rank's spans in the layout of PyTorch's profiler on an accelerator, which HolisticTraceAnalysis (HTA) reads: one file per rank.
// Format: what torch.profiler's export_chrome_trace() writes; names are those of the spans.
//
//   const nlohmann::json trace = kineto_trace(spans_by_rank[0], 0, 2, "gloo", first_start_ns(spans_by_rank));
//   write_file_atomically("trace.rank0.json", dump_json(trace, 0));   // HTA finds the rank by "rank": 0, with the space, in a line
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trace/span.h"

namespace firkin {

// To HTA only what runs on a stream of the device takes time, and a CPU has none. So an operator that is in no other one is there twice:
//
//   cpu_op     on its thread, where HTA takes it for the launch of work; operators within it as well
//   kernel     on a stream with the number of the thread (from 1): the work itself
//
// A collective is a kernel only, on the first stream from 100 on that is free: events of one stream must not overlap. A phase is a
// user_annotation; the Nth of the name "step" is called ProfilerStep#N, from 0. It and all kernels up to the next one have N + 1 as
// "correlation", by which HTA counts kernels to steps.
//
// Times are microseconds since origin_ns (since the Unix epoch; the same one on all ranks).
nlohmann::json kineto_trace(const std::vector<Span>& spans, int rank, int world_size, const std::string& backend, int64_t origin_ns);

}  // namespace firkin
