// The module firkin._core: planning, statistics and reports, without LibTorch.
#include <ctime>

#include "bindings.h"
#include "firkin/base/error.h"

namespace nb = nanobind;

namespace firkin::python {

Results start_results(const std::string& command) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  Results results;
  results.run.command = command;
  results.run.started = text;
  results.run.environment.firkin = FIRKIN_VERSION;
  return results;
}

}  // namespace firkin::python

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
