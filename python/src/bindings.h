// What each file of the module firkin._core adds to it. Docstrings say units; errors are firkin.InputError unless they say otherwise.
#pragma once

#include <nanobind/nanobind.h>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/bucket_plan.h"
#include "results/results.h"

namespace firkin::python {

// AllReduceTable as a class of its own: a plain vector would arrive in Python as a list.
struct MeasuredAllReduce {
  AllReduceTable rows;
};

void bind_profile(nanobind::module_& module);
void bind_allreduce(nanobind::module_& module);
void bind_prediction(nanobind::module_& module);
void bind_tuning(nanobind::module_& module);

// "close-when-full" or "at-most"; caps in MiB.
CapOptions cap_options(double cap_mib, const std::string& rule, std::optional<double> first_cap_mib);

// The only one that was measured, unless one is wanted.
int64_t chosen_world(const MeasuredAllReduce& table, std::optional<int64_t> wanted);

}  // namespace firkin::python
