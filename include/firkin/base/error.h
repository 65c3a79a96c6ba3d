// The two kinds of errors in Firkin.
#pragma once

#include <stdexcept>

namespace firkin {

// The user's input or flags are wrong. The message is one line: where (file, line), what, what was expected. Exit code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Something else went wrong: a rank died, a disk is full, a collective timed out. Exit code 1.
class RuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace firkin
