#include "python_errors.h"

#include <exception>
#include <string>

#include "ddp/backward_watch.h"
#include "firkin/base/error.h"
#include "firkin/comm/group_error.h"
#include "firkin/ddp/data_parallel.h"

#include <torch/csrc/Exceptions.h>

namespace firkin::python {
namespace {

namespace py = pybind11;

void raise(const char* module, const char* type, const py::object& argument) {
  PyErr_SetObject(py::module_::import(module).attr(type).ptr(), argument.ptr());
}

// Sets Python's error. False for an error that is none of ours. The GIL is held.
bool set_error(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const InputError& input) {
    raise("firkin._core", "InputError", py::str(input.what()));
  } catch (const StepError& step) {
    const StepFailure& failure = step.failure();
    raise("firkin._errors", "StepError", py::make_tuple(step.what(), failure.rank, failure.step, failure.reason));
  } catch (const GroupError& group) {
    raise("firkin._errors", "GroupError", py::str(group.what()));
  } catch (...) {
    return false;
  }
  return true;
}

// Autograd passes on an error of Python's as it is.
void throw_as_pythons() {
  const py::gil_scoped_acquire gil;
  if (!set_error(std::current_exception())) return;
  python_error error;
  error.persist();
  throw error;
}

}  // namespace

void translate_errors() {
  set_autograd_error_translation(throw_as_pythons);
  py::register_exception_translator([](std::exception_ptr error) {
    if (error != nullptr && !set_error(error)) std::rethrow_exception(error);
  });
}

}  // namespace firkin::python
