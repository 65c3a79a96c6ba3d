// What the files of the module firkin._core share.
#pragma once

#include <nanobind/nanobind.h>

#include "firkin/plan/measurements.h"

namespace firkin::python {

// AllReduceTable as a class of its own: a plain vector would arrive in Python as a list.
struct MeasuredAllReduce {
  AllReduceTable rows;
};

// Binds what firkin.tune asks: which all-reduces and steps to time next, and what to choose.
void bind_tuning(nanobind::module_& module);

// Binds Results: what firkin.tune or a watch found.
void bind_results(nanobind::module_& module);

}  // namespace firkin::python
