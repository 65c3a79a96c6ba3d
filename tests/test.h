// What the tests in C++ share: GoogleTest with its matchers by their short names, what of the standard library most of them use, and errors
// as text.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {

using namespace testing;

// What `body` throws, if that is an `Error`; empty: it throws nothing. Whatever else it throws goes on.
template <typename Error>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::string error_of(const std::function<void()>& body) {
  return message_of<std::exception>(body);
}

}  // namespace firkin
