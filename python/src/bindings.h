// What the two files of the module firkin._core share.
#pragma once

#include <nanobind/nanobind.h>

#include "firkin/plan/allreduce_table.h"

namespace firkin::python {

// AllReduceTable as a class of its own: a plain vector would arrive in Python as a list.
struct MeasuredAllReduce {
  AllReduceTable rows;
};

void bind_tuning(nanobind::module_& module);

}  // namespace firkin::python
