// Firkin's error types. Errors that only one component throws are declared beside it (data_parallel.h: StepError,
// AuditError).
//
//   try {
//     train();
//   } catch (const firkin::InputError& error) {  // one line, for whoever wrote the input
//     std::cerr << error.what() << "\n";
//     return 2;
//   }
#pragma once

#include <stdexcept>

namespace firkin {

// Invalid input or flags; exit code 2. The one-line message says where (file, line), what, and what was expected.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Any other failure: a rank died, a disk is full, a collective timed out. Exit code 1.
class RuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A collective failed or timed out: the group is lost, on this rank and soon on all others. The one-line message names
// the missing ranks: "rank 1 (gpu07) did not reach an all-reduce [Gloo: Timed out waiting 2000ms for recv operation to
// complete]". Later collectives of this group throw the same error at once. End the process then: its launcher has to
// start all ranks anew.
class GroupError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

}  // namespace firkin
