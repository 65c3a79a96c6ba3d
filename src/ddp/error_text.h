// What an exception says, as one line.
#pragma once

#include <exception>
#include <string>

namespace firkin {

// LibTorch's errors bring a backtrace after the first line.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return first_line(e.what());
  }
}

}  // namespace firkin
