// Errors of the C++ engine as Python's exceptions.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace firkin::python {

// firkin.InputError, firkin.StepError and firkin.GroupError for the errors of those names, out of calls and out of backward().
void translate_errors();

}  // namespace firkin::python
