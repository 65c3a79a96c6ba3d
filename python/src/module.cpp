// The module firkin._core: planning, statistics and reports, without LibTorch.
#include "bindings.h"
#include "firkin/base/error.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  module.doc() = "Planning, statistics and reports, without PyTorch.";
  module.attr("version") = FIRKIN_VERSION;
  const auto input_error = nb::exception<firkin::InputError>(module, "InputError", PyExc_ValueError);
  input_error.attr("__doc__") = "Wrong input, in one line: where, what, what was expected. A ValueError.";
  firkin::python::bind_profile(module);
  firkin::python::bind_allreduce(module);
  firkin::python::bind_prediction(module);
  firkin::python::bind_tuning(module);
}
